// The default model's tokenizer against Hugging Face's, whose answers
// tests/reference/make_tokenizer_reference.py wrote down.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/tokenizers/tokenizer_gguf.h"
#include "formats/twins/gguf_test_util.h"
#include "text/detokenizer.h"
#include "text/tokenizer/pipeline_tokenizer.h"

namespace millrace {
namespace {

using ::testing::ElementsAreArray;

TEST(SmolLm2TokenizerTest, EqualsHuggingFace) {
  std::ifstream file("tests/reference/tokenizer_smollm2.jsonl");
  ASSERT_TRUE(file.is_open()) << "run from the repository's root";
  const GgufFile model = *GgufFile::Open(DefaultModelPath());
  const auto made = PipelineTokenizer::Create(*MakeTokenizerSpec(*ReadGgufTokenizer(model)));
  ASSERT_TRUE(made.ok()) << made.status();
  const Tokenizer& tokenizer = **made;
  const auto ids_of = [&](std::string_view text, bool parse_special) {
    return *tokenizer.Encode(text, {.parse_special = parse_special});
  };
  int texts = 0, decodes = 0;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json expected = nlohmann::json::parse(line);
    if (expected.contains("text")) {
      ++texts;
      const std::string text = expected["text"];
      const std::vector<Token> ids = expected["ids"];
      EXPECT_THAT(ids_of(text, true), ElementsAreArray(ids)) << line;
      const std::vector<Token> plain =
          expected.contains("plain") ? expected["plain"].get<std::vector<Token>>() : ids;
      EXPECT_THAT(ids_of(text, false), ElementsAreArray(plain)) << line;
    } else {
      ++decodes;
      const std::vector<Token> ids = expected["decode"];
      const std::string kept = expected["kept"];
      EXPECT_EQ(Decode(tokenizer, ids, /*skip_special=*/false), kept) << line;
      EXPECT_EQ(Decode(tokenizer, ids, /*skip_special=*/true), expected.value("skipped", kept))
          << line;
    }
  }
  EXPECT_EQ(texts, 2000);
  EXPECT_EQ(decodes, 300);
}

}  // namespace
}  // namespace millrace
