// Every template that llama.cpp collects, against what transformers makes of it. Run by `make
// parity`, which fetches them: MILLRACE_TEMPLATES is their folder.
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
#include "server/text/chat_template.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string Render(const absl::StatusOr<ChatTemplate>& chat_template, const Json& messages,
                   const Json& extra) {
  if (!chat_template.ok()) return "\1";
  ChatTemplateOptions options;
  options.now = absl::FromCivil(absl::CivilSecond(2024, 2, 29, 13, 5, 9), absl::UTCTimeZone());
  return chat_template->Render(messages, extra, options).value_or("\1");
}

// As make_template_reference.py has it.
std::string Digest(const std::string& text) {
  Sha256 sha256;
  sha256.Update(text);
  const Sha256Digest digest = sha256.Finish();
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), 8));
}

TEST(TemplateParityTest, RendersEveryTemplateAsTransformersDoes) {
  const char* folder = std::getenv("MILLRACE_TEMPLATES");
  ASSERT_NE(folder, nullptr);
  const Json reference = Json::parse(Read("tests/reference/template_hashes.json"));
  ASSERT_GE(reference["templates"].size(), 70);
  for (const Json& expected : reference["templates"]) {
    const std::string source = Read(StrCat(folder, "/", expected[0].get<std::string>()));
    ASSERT_FALSE(source.empty()) << expected[0];
    const auto chat_template = ChatTemplate::Parse(source, {.bos = "<s>", .eos = "</s>"});
    size_t column = 1;
    for (const auto& [name, messages] : reference["conversations"].items()) {
      std::string texts;
      for (const Json& extra : reference["extras"]) {
        if (&extra != &reference["extras"].front()) texts += '\0';
        texts += Render(chat_template, messages, extra);
      }
      EXPECT_EQ(Digest(texts), expected[column++]) << expected[0] << ": " << name;
    }
  }
}

}  // namespace
}  // namespace millrace
