// GGUF files whose keys are missing, wrong or odd, against what llama.cpp makes of them:
// tests/reference/make_gguf_reference.py wrote it down.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "base/strings.h"
#include "formats/model_text.h"
#include "formats/twins/gguf_test_util.h"
#include "text/tokenizer/pipeline_tokenizer.h"

namespace millrace {
namespace {

using ::testing::Contains;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class GgufReferenceTest : public ::testing::Test {
 protected:
  ~GgufReferenceTest() override { unlink(path_.c_str()); }

  ModelText Read(const Json& keys) {
    WriterOf(keys).Write(path_);
    absl::StatusOr<ModelText> text = ReadModelText(path_);
    EXPECT_TRUE(text.ok()) << text.status();
    return text.ok() ? *std::move(text) : ModelText{};
  }

  static Json Cases() {
    std::ifstream file("tests/reference/gguf_reference.json");
    return Json::parse(file);
  }
  static Json KeysOf(const std::string& name) {
    for (const Json& reference : Cases()) {
      if (reference["name"] == name) return reference["keys"];
    }
    ADD_FAILURE() << name;
    return {};
  }

  const std::string path_ = StrCat(::testing::TempDir(), "gguf_reference_test_", getpid(), ".gguf");
};

TEST_F(GgufReferenceTest, EveryVocabularyIsReadAsByLlamaCpp) {
  const Json cases = Cases();
  EXPECT_GT(cases.size(), 40u);
  for (const Json& reference : cases) {
    SCOPED_TRACE(reference["name"]);
    const ModelText text = Read(reference["keys"]);
    const auto tokenizer = PipelineTokenizer::Create(text.tokenizer);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_THAT((*tokenizer)->end_of_generation(),
                ElementsAreArray(reference["ends"].get<std::vector<Token>>()));
    // Of gpt-oss's tokens of channels llama.cpp makes user-defined ones, so as to show them: here
    // they stay special.
    std::vector<Token> whole = reference["special"];
    for (const Token token : whole) EXPECT_TRUE((*tokenizer)->IsSpecial(token)) << token;
    for (const Token token : reference["user_defined"]) whole.push_back(token);
    std::sort(whole.begin(), whole.end());
    whole.erase(std::unique(whole.begin(), whole.end()), whole.end());
    std::vector<Token> added;
    for (const AddedTokenSpec& token : text.tokenizer.added) added.push_back(token.id);
    EXPECT_EQ(added, whole);
    for (const Json& entry : reference["texts"]) {
      const auto tokens =
          (*tokenizer)
              ->Encode(entry[0].get<std::string>(), {.add_special = true, .parse_special = true});
      ASSERT_TRUE(tokens.ok()) << tokens.status();
      EXPECT_EQ(*tokens, entry[1].get<std::vector<Token>>()) << entry[0];
    }
  }
}

TEST_F(GgufReferenceTest, WhatIsNotFollowedIsAWarning) {
  EXPECT_THAT(Read(KeysOf("gpt-oss")).warnings, IsEmpty());
  EXPECT_THAT(Read(KeysOf("llama without ids")).warnings, IsEmpty());
  EXPECT_THAT(
      Read(KeysOf("ids beyond the vocabulary")).warnings,
      Contains(HasSubstr("key tokenizer.ggml.padding_token_id: 99999 is left out, since the "
                         "vocabulary has 261 tokens")));
  EXPECT_THAT(Read(KeysOf("all ends are plain tokens")).warnings,
              Contains(HasSubstr("token 2 \"<|im_end|>\" has type 1, and is read as a control "
                                 "token")));
  Json keys = KeysOf("pre default");
  EXPECT_THAT(Read(keys).warnings, Contains(HasSubstr("tokenizer.ggml.pre: is \"default\"")));
  keys.erase("tokenizer.ggml.pre");
  EXPECT_THAT(Read(keys).warnings, Contains(HasSubstr("tokenizer.ggml.pre: is missing")));
  keys["tokenizer.ggml.pre"] = "qwen2";
  EXPECT_THAT(Read(keys).warnings, Not(Contains(HasSubstr("tokenizer.ggml.pre"))));
}

TEST_F(GgufReferenceTest, AChatBeginsWithTheBosThatTheFileAdds) {
  EXPECT_EQ(Read(KeysOf("llama without ids")).chat_bos, 1);
  EXPECT_EQ(Read(KeysOf("llama, no bos")).chat_bos, std::nullopt);
  EXPECT_EQ(Read(KeysOf("gpt-oss")).chat_bos, std::nullopt);
  EXPECT_EQ(Read(KeysOf("llama without ids")).chat_eos, std::nullopt);
  EXPECT_EQ(Read(KeysOf("llama, eos")).chat_eos, 2);
}

}  // namespace
}  // namespace millrace
