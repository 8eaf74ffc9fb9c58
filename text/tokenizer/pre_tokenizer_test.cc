#include "text/tokenizer/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/strings.h"
#include "formats/tokenizers/tokenizer_gguf.h"
#include "formats/tokenizers/tokenizer_json_parts.h"
#include "formats/tokenizers/tokenizer_pre.h"
#include "text/tokenizer/normalizer.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Pieces(const std::vector<PreTokenizerSpec>& steps, std::string_view text,
                                bool at_start = true) {
  const absl::StatusOr<PreTokenizer> pre_tokenizer = PreTokenizer::Create(steps);
  EXPECT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.status();
  std::vector<std::string> pieces;
  const absl::Status status =
      pre_tokenizer->Split({text, at_start ? size_t{1} : 0}, [&](TextPiece piece) {
        pieces.emplace_back(piece.text);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  return pieces;
}

// The steps that a tokenizer.ggml.pre stands for, without the spelling of
// bytes.
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
  const absl::Status status = StepsOf("tekkan").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("tokenizer.ggml.pre: \"tekkan\" is not supported "
                              "(supported: a.x-4.0, "),
                    HasSubstr(", superbpe, talkie, tekken, ")));
}

// tests/reference/make_pre_reference.py cut the texts with Hugging Face's
// tokenizers.
TEST(PreTokenizerTest, EveryNameCutsAsHuggingFaceDoes) {
  std::ifstream file("tests/reference/pre_reference.json");
  const nlohmann::json reference = nlohmann::json::parse(file);
  std::set<std::string_view> unseen;
  for (const std::string_view name : GgufPreNames()) {
    if (!IsSentencePiecePre(name)) unseen.insert(name);
  }
  EXPECT_EQ(unseen.size(), 88u);
  for (const auto& group : reference["pre"]) {
    for (const std::string name : group["names"]) {
      SCOPED_TRACE(name);
      unseen.erase(name);
      GgufTokenizer config;
      config.pre = name;
      const absl::StatusOr<TokenizerSpec> spec = MakeTokenizerSpec(config);
      ASSERT_TRUE(spec.ok()) << spec.status();
      EXPECT_EQ(!spec->normalizers.empty(), group["nfc"].get<bool>());
      EXPECT_EQ(std::get<BpeModelSpec>(spec->model).ignore_merges,
                group["ignore_merges"].get<bool>());
      EXPECT_EQ(FindGgufPreTokenizer(name)->add_bos, group["add_bos"].get<bool>());
      std::vector<PreTokenizerSpec> steps = spec->pre_tokenizers;
      const PreTokenizerSpec spell = SimplePreTokenizer::kSpellBytes;
      if (steps.back().index() == spell.index()) steps.pop_back();
      const absl::StatusOr<Normalizer> normalizer = Normalizer::Create(spec->normalizers);
      ASSERT_TRUE(normalizer.ok()) << normalizer.status();
      for (size_t i = 0; i < reference["texts"].size(); ++i) {
        NormalizedText text = UnnormalizedText(reference["texts"][i].get<std::string>());
        ASSERT_TRUE(normalizer->Apply(&text).ok());
        std::vector<size_t> sizes;
        for (const std::string& piece : Pieces(steps, text.text)) sizes.push_back(piece.size());
        EXPECT_EQ(sizes, group["pieces"][i].get<std::vector<size_t>>()) << text.text;
      }
    }
  }
  EXPECT_THAT(unseen, IsEmpty());
}

// NFKC makes three characters of a half, and Metaspace takes each of them for the text's first.
TEST(PreTokenizerTest, MetaspaceKnowsWhatStemsFromTheFirstCharacter) {
  std::ifstream file("tests/reference/pre_reference.json");
  const nlohmann::json reference = nlohmann::json::parse(file);
  EXPECT_GE(reference["first"].size(), 90u);
  for (const auto& entry : reference["first"]) {
    SCOPED_TRACE(StrCat(entry["normalizer"].dump(), " ", entry["pre_tokenizer"].dump()));
    const auto normalizers = ReadNormalizers(entry["normalizer"], "normalizer: ");
    const auto steps = ReadPreTokenizers(entry["pre_tokenizer"], "pre_tokenizer: ");
    ASSERT_TRUE(normalizers.ok() && steps.ok()) << normalizers.status() << steps.status();
    const absl::StatusOr<Normalizer> normalizer = Normalizer::Create(*normalizers);
    const absl::StatusOr<PreTokenizer> pre_tokenizer = PreTokenizer::Create(*steps);
    ASSERT_TRUE(normalizer.ok() && pre_tokenizer.ok());
    for (size_t i = 0; i < reference["first_texts"].size(); ++i) {
      const std::string source = reference["first_texts"][i];
      NormalizedText text = UnnormalizedText(source);
      ASSERT_TRUE(normalizer->Apply(&text).ok());
      std::string marked;
      if (!text.text.empty()) {
        ASSERT_TRUE(pre_tokenizer
                        ->Split({text.text, text.first_bytes},
                                [&](TextPiece piece) {
                                  marked += StrCat(piece.text, "|");
                                  return absl::OkStatus();
                                })
                        .ok());
      }
      const std::string expected = absl::HexStringToBytes(entry["ids"][i].get<std::string>());
      EXPECT_EQ(marked, expected) << source;
    }
  }
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
    return pre_tokenizer.Split({text, 1}, [&](TextPiece) {
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
