#include "server/text/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "formats/tokenizer_gguf.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Pieces(const std::vector<PreTokenizerSpec>& steps, std::string_view text,
                                bool at_start = true) {
  const absl::StatusOr<PreTokenizer> pre_tokenizer = PreTokenizer::Create(steps);
  EXPECT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.status();
  std::vector<std::string> pieces;
  const absl::Status status = pre_tokenizer->Split({text, at_start}, [&](TextPiece piece) {
    pieces.emplace_back(piece.text);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return pieces;
}

// The steps that a tokenizer.ggml.pre stands for, without the spelling of bytes.
absl::StatusOr<std::vector<PreTokenizerSpec>> StepsOf(std::string_view pre) {
  GgufTokenizer config;
  config.pre = pre;
  absl::StatusOr<TokenizerSpec> spec = MakeTokenizerSpec(config);
  if (!spec.ok()) return spec.status();
  spec->pre_tokenizers.pop_back();
  return std::move(spec->pre_tokenizers);
}

std::vector<std::string> Split(std::string_view pre, std::string_view text) {
  return Pieces(*StepsOf(pre), text);
}

TEST(PreTokenizerTest, Gpt2) {
  EXPECT_THAT(Split("gpt-2", "It's  12,500 zł\n\n x"),
              ElementsAre("It", "'s", " ", " 12", ",", "500", " zł", "\n\n", " x"));
  EXPECT_THAT(Split("gpt-2", "  "), ElementsAre("  "));
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
  const absl::Status status = StepsOf("tekken").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("tokenizer.ggml.pre: \"tekken\" is not supported (supported: command-r, "));
}

TEST(PreTokenizerTest, SplitBehaviors) {
  const auto split = [](SplitBehavior behavior, bool invert = false) {
    return Pieces({SplitPreTokenizer{{false, "-"}, behavior, invert}}, "the-final--cut");
  };
  EXPECT_THAT(split(SplitBehavior::kRemoved), ElementsAre("the", "final", "cut"));
  EXPECT_THAT(split(SplitBehavior::kRemoved, true), ElementsAre("-", "-", "-"));
  EXPECT_THAT(split(SplitBehavior::kIsolated), ElementsAre("the", "-", "final", "-", "-", "cut"));
  EXPECT_THAT(split(SplitBehavior::kMergedWithPrevious), ElementsAre("the-", "final-", "-", "cut"));
  EXPECT_THAT(split(SplitBehavior::kMergedWithNext), ElementsAre("the", "-final", "-", "-cut"));
  EXPECT_THAT(split(SplitBehavior::kContiguous), ElementsAre("the", "-", "final", "--", "cut"));
}

TEST(PreTokenizerTest, MetaspaceMarksTheStartWhereAsked) {
  const auto marked = [](PrependScheme scheme, std::string_view text, bool at_start) {
    return Pieces({MetaspacePreTokenizer{"_", scheme}}, text, at_start);
  };
  EXPECT_THAT(marked(PrependScheme::kAlways, "a b", false), ElementsAre("_a_b"));
  EXPECT_THAT(marked(PrependScheme::kAlways, " b", false), ElementsAre("_b"));
  EXPECT_THAT(marked(PrependScheme::kFirst, "a b", true), ElementsAre("_a_b"));
  EXPECT_THAT(marked(PrependScheme::kFirst, "a b", false), ElementsAre("a_b"));
  EXPECT_THAT(marked(PrependScheme::kNever, "a b", true), ElementsAre("a_b"));
}

TEST(PreTokenizerTest, ScriptsAndLengths) {
  EXPECT_THAT(Pieces({SimplePreTokenizer::kUnicodeScripts}, " Latin кириллица漢かな!"),
              ElementsAre("Latin ", "кириллица", "漢かな", "!"));
  EXPECT_THAT(Pieces({FixedLengthPreTokenizer{2}}, "aéñbc"), ElementsAre("aé", "ñb", "c"));
}

TEST(PreTokenizerTest, BoundsARunOfWhiteSpace) {
  const PreTokenizer pre_tokenizer = *PreTokenizer::Create(*StepsOf("smollm"));
  size_t pieces = 0;
  const auto split = [&](const std::string& text) {
    return pre_tokenizer.Split({text, true}, [&](TextPiece) {
      ++pieces;
      return absl::OkStatus();
    });
  };
  EXPECT_TRUE(split(std::string(4 << 20, 'a')).ok());
  EXPECT_TRUE(split(std::string(1 << 20, ' ') + "a").ok());
  EXPECT_EQ(pieces, 3u);
  const absl::Status status = split("1" + std::string(4 << 20, ' '));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("prompt: the text after byte 0 is too long"));
}

}  // namespace
}  // namespace millrace
