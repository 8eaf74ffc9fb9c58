// Every template that llama.cpp collects, against what transformers makes of it. Run by `make
// parity`, which fetches them: MILLRACE_TEMPLATES is their folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "base/sha256.h"
#include "base/strings.h"
#include "text/chat_template.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

absl::StatusOr<std::string> Render(const absl::StatusOr<ChatTemplate>& chat_template,
                                   const Json& messages, const Json& extra,
                                   ChatTemplateOptions options = {}) {
  if (!chat_template.ok()) return chat_template.status();
  options.now = absl::FromCivil(absl::CivilSecond(2024, 2, 29, 13, 5, 9), absl::UTCTimeZone());
  return chat_template->Render(messages, extra, options);
}

// As make_template_reference.py has it.
std::string Digest(const std::string& text) {
  return absl::BytesToHexString(AbslView(AsBytes(Sha256Of(text)).substr(0, 8)));
}

absl::StatusOr<ChatTemplate> Template(const std::string& name) {
  const char* folder = std::getenv("MILLRACE_TEMPLATES");
  EXPECT_NE(folder, nullptr);
  const std::string source = Read(StrCat(folder, "/", name));
  EXPECT_FALSE(source.empty()) << name;
  return ChatTemplate::Parse(source, {.bos = "<s>", .eos = "</s>"});
}

TEST(TemplateParityTest, RendersEveryTemplateAsTransformersDoes) {
  const Json reference = Json::parse(Read("tests/reference/template_hashes.json"));
  ASSERT_GE(reference["templates"].size(), 70);
  for (const Json& expected : reference["templates"]) {
    const auto chat_template = Template(expected[0]);
    size_t column = 1;
    for (const auto& [name, messages] : reference["conversations"].items()) {
      std::string texts;
      for (const Json& extra : reference["extras"]) {
        if (&extra != &reference["extras"].front()) texts += '\0';
        texts += Render(chat_template, messages, extra).value_or("\1");
      }
      EXPECT_EQ(Digest(texts), expected[column++]) << expected[0] << ": " << name;
    }
  }
}

TEST(TemplateParityTest, SaysWhatATemplateRaises) {
  const Json reference = Json::parse(Read("tests/reference/template_hashes.json"));
  ASSERT_GE(reference["raised"].size(), 40);
  for (const Json& expected : reference["raised"]) {
    const auto chat_template = Template(expected[0]);
    const Json& messages = reference["conversations"][expected[1].get<std::string>()];
    for (size_t i = 0; i < expected[2].size(); ++i) {
      if (expected[2][i].is_null()) continue;
      const auto rendered = Render(chat_template, messages, reference["extras"][i]);
      EXPECT_THAT(std::string(rendered.status().message()),
                  ::testing::EndsWith(": " + expected[2][i].get<std::string>()))
          << expected[0] << ": " << expected[1];
    }
  }
}

TEST(TemplateParityTest, EndsInsideTheFinalMessageAsTransformersDoes) {
  const Json reference = Json::parse(Read("tests/reference/template_hashes.json"));
  ASSERT_GE(reference["continued"].size(), 70);
  for (const Json& expected : reference["continued"]) {
    const auto chat_template = Template(expected[0]);
    size_t column = 1;
    for (const auto& [name, messages] : reference["conversations"].items()) {
      const auto rendered =
          Render(chat_template, messages, Json::object(),
                 {.add_generation_prompt = false, .continue_final_message = true});
      EXPECT_EQ(rendered.ok() ? Json(Digest(*rendered)) : Json(), expected[column++])
          << expected[0] << ": " << name << ": " << rendered.status();
    }
  }
}

}  // namespace
}  // namespace millrace
