#include "server/text/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Split(std::string_view kind, std::string_view text) {
  const absl::StatusOr<PreTokenizer> pre_tokenizer = PreTokenizer::Create(kind);
  EXPECT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.status();
  std::vector<std::string> pieces;
  const absl::Status status =
      pre_tokenizer->Split(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  EXPECT_TRUE(status.ok()) << status;
  return pieces;
}

TEST(PreTokenizerTest, Gpt2) {
  EXPECT_THAT(Split("gpt-2", "It's  12,500 zł\n\n x"),
              ElementsAre("It", "'s", " ", " 12", ",", "500", " zł", "\n\n", " x"));
  EXPECT_THAT(Split("gpt-2", "  "), ElementsAre("  "));
  EXPECT_THAT(Split("gpt-2", ""), ElementsAre());
}

TEST(PreTokenizerTest, SmolLmSplitsNumbersFirst) {
  EXPECT_THAT(Split("smollm", "It's  12,500 zł\n\n x"),
              ElementsAre("It", "'s", "  ", "1", "2", ",", "5", "0", "0", " zł", "\n\n", " x"));
  EXPECT_THAT(Split("smollm", " ½Ⅷ٣ 1  a"), ElementsAre(" ", "½", "Ⅷ", "٣", " ", "1", " ", " a"));
}

TEST(PreTokenizerTest, Llama3) {
  EXPECT_THAT(Split("llama-bpe", "It'S  12500 zł!!\n\n x\r\n"),
              ElementsAre("It", "'S", " ", " ", "125", "00", " zł", "!!\n\n", " x", "\r\n"));
}

TEST(PreTokenizerTest, RefusesUnknownKindsByName) {
  const absl::Status status = PreTokenizer::Create("tekken").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr(
          "tokenizer.ggml.pre: \"tekken\" is not supported (supported: gpt-2, llama-bpe, smollm)"));
}

TEST(PreTokenizerTest, BoundsARunOfWhiteSpace) {
  const PreTokenizer pre_tokenizer = *PreTokenizer::Create("smollm");
  size_t pieces = 0;
  const auto count = [&](std::string_view) { ++pieces; };
  EXPECT_TRUE(pre_tokenizer.Split(std::string(4 << 20, 'a'), count).ok());
  EXPECT_TRUE(pre_tokenizer.Split(std::string(500000, ' ') + "a", count).ok());
  EXPECT_EQ(pieces, 3u);
  const absl::Status status = pre_tokenizer.Split("1" + std::string(2 << 20, ' '), count);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the white space at byte 1 is too long"));
}

}  // namespace
}  // namespace millrace
