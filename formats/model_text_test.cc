#include "formats/model_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/strings.h"
#include "formats/json/json.h"
#include "formats/twins/gguf_test_util.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Optional;

constexpr char kTokenizer[] = R"({
    "added_tokens": [{"id": 3, "content": "<s>", "special": true},
                     {"id": 4, "content": "</s>", "special": true}],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}})";

class ModelTextTest : public ::testing::Test {
 protected:
  ModelTextTest() {
    std::filesystem::create_directories(folder_);
    Write("tokenizer.json", kTokenizer);
  }
  ~ModelTextTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) {
    WriteFile(StrCat(folder_, "/", name), text);
  }
  ModelText Read() {
    absl::StatusOr<ModelText> text = ReadModelText(folder_);
    EXPECT_TRUE(text.ok()) << text.status();
    return text.ok() ? *std::move(text) : ModelText{};
  }
  std::string Error() {
    const absl::StatusOr<ModelText> text = ReadModelText(folder_);
    if (text.ok()) return "no error";
    EXPECT_THAT(std::string(text.status().message()), Not(HasSubstr(folder_)));
    return std::string(text.status().message());
  }

  const std::string folder_ = StrCat(::testing::TempDir(), "model_text_test_", getpid());
};

TEST_F(ModelTextTest, ATokenizerIsEnough) {
  const ModelText text = Read();
  EXPECT_EQ(text.tokenizer.vocabulary.size(), 3u);
  EXPECT_EQ(text.tokenizer.bos, std::nullopt);
  EXPECT_THAT(text.tokenizer.end_of_generation, IsEmpty());
  EXPECT_EQ(text.bos, std::nullopt);
  EXPECT_EQ(text.chat_template, "");
}

TEST_F(ModelTextTest, ReadsTheConfigsTokens) {
  Write("tokenizer_config.json", R"({"bos_token": "<s>", "add_bos_token": true,
      "eos_token": {"__type": "AddedToken", "content": "</s>", "special": true},
      "unk_token": null, "pad_token": "<nowhere>", "chat_template": "{{ bos_token }}"})");
  const ModelText text = Read();
  EXPECT_THAT(text.bos, Optional(std::string("<s>")));
  EXPECT_THAT(text.eos, Optional(std::string("</s>")));
  EXPECT_EQ(text.unknown, std::nullopt);
  EXPECT_THAT(text.pad, Optional(std::string("<nowhere>")));
  EXPECT_EQ(text.tokenizer.bos, 3);
  EXPECT_EQ(text.tokenizer.eos, 4);
  EXPECT_EQ(text.tokenizer.pad, 5);  // no token of tokenizer.json: the next one
  EXPECT_THAT(text.tokenizer.end_of_generation, ElementsAre(4));
  EXPECT_THAT(text.tokenizer.frame, ElementsAre(std::nullopt));  // tokenizer.json says so
  EXPECT_EQ(text.chat_template, "{{ bos_token }}");
}

TEST_F(ModelTextTest, AnOlderConfigsTokensGiveWayToTheMap) {
  Write("tokenizer_config.json", R"({"bos_token": "a", "eos_token": "</s>"})");
  Write("special_tokens_map.json", R"({"bos_token": {"content": "<s>"}})");
  EXPECT_EQ(Read().tokenizer.bos, 3);
  EXPECT_EQ(Read().tokenizer.eos, 4);
  Write("tokenizer_config.json", R"({"bos_token": "a", "added_tokens_decoder": {}})");
  EXPECT_EQ(Read().tokenizer.bos, 0);
}

TEST_F(ModelTextTest, TheConfigChangesAndAddsTokens) {
  Write("tokenizer_config.json", R"({"eos_token": "<|im_end|>", "added_tokens_decoder": {
      "4": {"content": "</s>", "special": false, "normalized": false, "lstrip": true},
      "1": {"content": "b", "special": true},
      "5": {"content": "<|im_end|>", "special": true}}})");
  const ModelText text = Read();
  ASSERT_EQ(text.tokenizer.added.size(), 4u);
  const AddedTokenSpec& changed = text.tokenizer.added[1];
  EXPECT_EQ(changed.id, 4);
  EXPECT_FALSE(changed.special);
  EXPECT_TRUE(changed.lstrip);
  EXPECT_EQ(text.tokenizer.added[2].id, 1);
  EXPECT_EQ(text.tokenizer.added[3].content, "<|im_end|>");
  EXPECT_THAT(text.tokenizer.end_of_generation, ElementsAre(5));
}

// As transformers 5.23 has it (added_tokens_decoder of what AutoTokenizer reads there).
TEST_F(ModelTextTest, SpecialTokensThatOnlyConfigsNameAreAdded) {
  Write("tokenizer_config.json", R"({"eos_token": "ab", "mask_token": "<m>",
      "additional_special_tokens": ["<x>", {"content": "<y>", "lstrip": true}, "</s>"]})");
  Write("special_tokens_map.json", R"({"pad_token": "<p>", "mask_token": {"content": "<n>"}})");
  Write("added_tokens.json", R"({"<q>": 5, "</s>": 4})");
  const ModelText text = Read();
  std::vector<std::string> added;
  for (const AddedTokenSpec& token : text.tokenizer.added) {
    added.push_back(StrCat(token.id, token.content, token.special ? " special" : ""));
    EXPECT_EQ(token.lstrip, token.content == "<y>");
  }
  EXPECT_THAT(added, ElementsAre("3<s> special", "4</s> special", "5<q>", "2ab special",
                                 "6<p> special", "7<n> special", "8<x> special", "9<y> special"));
  EXPECT_THAT(text.tokenizer.end_of_generation, ElementsAre(2));
  EXPECT_EQ(text.tokenizer.pad, 6);
  Write("added_tokens.json", R"({"<q>": 2})");
  EXPECT_THAT(Error(), HasSubstr("added_tokens.json: <q>: is 2, but tokenizer.json has \"ab\""));
  Write("added_tokens.json", R"({"<q>": "5"})");
  EXPECT_THAT(Error(), HasSubstr("added_tokens.json: <q>: is \"5\", must be an integer"));
  std::filesystem::remove(folder_ + "/added_tokens.json");
  Write("tokenizer_config.json", R"({"additional_special_tokens": "<x>"})");
  EXPECT_THAT(Error(), HasSubstr("additional_special_tokens: is \"<x>\", must be a list"));
  Write("tokenizer_config.json", R"({"extra_special_tokens": [7]})");
  EXPECT_THAT(Error(), HasSubstr("extra_special_tokens: is 7, must be a token's text"));
}

TEST_F(ModelTextTest, TemplatesHaveNames) {
  Write("tokenizer_config.json",
        R"({"chat_template": {"default": "D", "tool_use": "T", "x": "X"}})");
  EXPECT_EQ(Read().chat_template, "D");
  EXPECT_EQ(Read().tool_template, "T");
  std::filesystem::create_directories(folder_ + "/additional_chat_templates");
  Write("additional_chat_templates/tool_use.jinja", "a file with tools");
  EXPECT_EQ(Read().chat_template, "D");
  EXPECT_EQ(Read().tool_template, "a file with tools");
  Write("chat_template.jinja", "");  // says nothing
  EXPECT_EQ(Read().chat_template, "D");
  Write("chat_template.jinja", "a file");
  EXPECT_EQ(Read().chat_template, "a file");
  std::filesystem::remove_all(folder_ + "/additional_chat_templates");
  EXPECT_EQ(Read().tool_template, "");
  std::filesystem::remove(folder_ + "/chat_template.jinja");
  Write("tokenizer_config.json", R"({"chat_template": {"default": 1}})");
  EXPECT_THAT(Error(), HasSubstr("tokenizer_config.json: chat_template.default: is 1"));
}

TEST_F(ModelTextTest, TemplatesHaveAnOrder) {
  const Json config = {
      {"chat_template",
       {{{"name", "tool_use"}, {"template", "T"}}, {{"name", "default"}, {"template", "D"}}}}};
  Write("chat_template.json", R"({"chat_template": "processor"})");
  EXPECT_EQ(Read().chat_template, "processor");
  Write("tokenizer_config.json", config.dump());
  EXPECT_EQ(Read().chat_template, "D");
  EXPECT_EQ(Read().tool_template, "T");
  Write("chat_template.jinja", "a file\n");
  EXPECT_EQ(Read().chat_template, "a file\n");
}

TEST_F(ModelTextTest, NamesTheFileAndTheFieldOfALie) {
  const auto with_config = [&](const std::string& config) {
    Write("tokenizer_config.json", config);
    return Error();
  };
  EXPECT_THAT(with_config("[]"), HasSubstr("tokenizer_config.json: is [], must be an object"));
  EXPECT_THAT(with_config("{"), HasSubstr("tokenizer_config.json: "));
  EXPECT_THAT(with_config(R"({"eos_token": 2})"),
              HasSubstr("tokenizer_config.json: eos_token: is 2, must be a token's text"));
  EXPECT_THAT(with_config(R"({"eos_token": {"text": "x"}})"), HasSubstr("eos_token: is "));
  EXPECT_THAT(with_config(R"({"added_tokens_decoder": {"-1": {"content": "x"}}})"),
              HasSubstr("added_tokens_decoder.-1: is "));
  EXPECT_THAT(with_config(R"({"added_tokens_decoder": {"1": {"content": "x"}}})"),
              HasSubstr("added_tokens_decoder.1.content: is \"x\", but tokenizer.json has \"b\""));
  EXPECT_THAT(with_config(R"({"chat_template": 1})"), HasSubstr("chat_template: is 1, must be"));
  EXPECT_THAT(with_config(R"({"chat_template": [{"name": "default"}]})"),
              HasSubstr("tokenizer_config.json: chat_template[0].template: is missing"));
  EXPECT_THAT(with_config(Json({{"chat_template", std::string((1 << 20) + 1, 'x')}}).dump()),
              HasSubstr("tokenizer_config.json: chat_template: 1048577 bytes, must be at most "
                        "1048576"));
  // The file that the template is in, if it is another.
  Write("tokenizer_config.json", "{}");
  Write("chat_template.json", R"({"chat_template": [{"name": "default"}]})");
  EXPECT_THAT(Error(), HasSubstr("chat_template.json: chat_template[0].template: is missing"));
  Write("chat_template.json", Json({{"chat_template", std::string((1 << 20) + 1, 'x')}}).dump());
  EXPECT_THAT(Error(), HasSubstr("chat_template.json: chat_template: 1048577 bytes"));
}

TEST_F(ModelTextTest, WithoutATokenizerSaysWhatToDo) {
  std::filesystem::remove(folder_ + "/tokenizer.json");
  Write("vocab.json", "{}");
  EXPECT_THAT(Error(), HasSubstr("tokenizer.json: the folder has none"));
  EXPECT_THAT(Error(), HasSubstr("--tokenizer"));
}

}  // namespace
}  // namespace millrace
