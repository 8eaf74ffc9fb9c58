#include "engine/constraints/guided_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizers/tokenizer_gguf.h"
#include "text/tokenizer/pipeline_tokenizer.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A tokenizer and its tokens as a grammar sees them; token 0 ends an answer.
struct Words {
  Words(TokenizerKind kind, std::vector<std::string_view> texts,
        const std::vector<std::string_view>& merges, bool add_space_prefix = false) {
    GgufTokenizer config;
    config.kind = kind;
    config.pre = "gpt-2";
    config.tokens = texts;
    config.types.assign(texts.size(), TokenType::kNormal);
    config.types[0] = TokenType::kControl;
    config.scores.resize(texts.size());
    // The longer a token, the better.
    for (size_t i = 0; i < texts.size(); ++i)
      config.scores[i] = static_cast<float>(texts[i].size());
    config.merges = merges;
    config.eos = 0;
    config.add_space_prefix = add_space_prefix;
    tokenizer = *PipelineTokenizer::Create(*MakeTokenizerSpec(config));
    std::vector<VocabularyToken> tokens;
    for (Token token = 0; token < tokenizer->vocab_size(); ++token) {
      tokens.push_back({tokenizer->TokenBytes(token), tokenizer->IsSpecial(token)});
    }
    vocabulary = std::make_shared<GrammarVocabulary>(tokens, std::vector<Token>{0}, 40);
  }

  GuidedAnswer Follow(std::string_view regex, bool forces = true) const {
    const auto grammar =
        Grammar::Compile({.kind = GrammarSpec::Kind::kRegex, .text = std::string(regex)});
    EXPECT_TRUE(grammar.ok()) << grammar.status();
    return {GrammarMatcher(*grammar, vocabulary), forces ? tokenizer.get() : nullptr};
  }

  std::unique_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const GrammarVocabulary> vocabulary;
};

const Words& Gpt2() {
  static const auto& words = *new Words(
      TokenizerKind::kGpt2, {"<eos>", "a", "b", "c", "x", "y", "bc", "ab", "abc", "xy", "Ġ"},
      {"b c", "a b", "a bc", "x y"});
  return words;
}
constexpr Token kEnd = 0, kA = 1, kB = 2, kX = 4, kY = 5, kAbc = 8, kXy = 9;

std::vector<Token> Allowed(GuidedAnswer& answer) {
  std::vector<Token> allowed;
  const auto mask = answer.Mask();
  for (Token token = 0; token < 40; ++token) {
    if (MaskAllows(**mask, token)) allowed.push_back(token);
  }
  return allowed;
}

TEST(GuidedAnswerTest, AForcedTextIsWrittenInTheTokenizersTokensButForItsLast) {
  GuidedAnswer answer = Gpt2().Follow("abcxy[ab]");
  EXPECT_EQ(answer.num_forced(), 1u);
  EXPECT_THAT(Allowed(answer), ElementsAre(kAbc));
  EXPECT_FALSE(answer.Accept(kA));
  ASSERT_TRUE(answer.Accept(kAbc));
  EXPECT_THAT(Allowed(answer), ElementsAre(kX, kXy));  // the last one may go on into what follows
  ASSERT_TRUE(answer.Accept(kX));
  EXPECT_THAT(Allowed(answer), ElementsAre(kY));
  ASSERT_TRUE(answer.Accept(kY));
  EXPECT_THAT(Allowed(answer), ElementsAre(kA, kB));
  EXPECT_FALSE(answer.finished());
  ASSERT_TRUE(answer.Accept(kB));
  EXPECT_TRUE(answer.finished());
}

TEST(GuidedAnswerTest, WhatIsTakenAtOnceIsWhatWouldComeOneByOne) {
  GuidedAnswer one_by_one = Gpt2().Follow("[ab]xyabcxya*");
  ASSERT_TRUE(one_by_one.Accept(kB));
  GuidedAnswer at_once = one_by_one;
  const std::vector<Token> taken = at_once.TakeForced();
  EXPECT_THAT(taken, ElementsAre(kXy, kAbc));
  EXPECT_THAT(at_once.TakeForced(), IsEmpty());
  for (const Token token : taken) {
    EXPECT_THAT(Allowed(one_by_one), ElementsAre(token));
    ASSERT_TRUE(one_by_one.Accept(token));
  }
  EXPECT_EQ(Allowed(at_once), Allowed(one_by_one));
  EXPECT_THAT(Allowed(at_once), ElementsAre(kX, kXy));
}

TEST(GuidedAnswerTest, AnEndIsForcedWhole) {
  GuidedAnswer answer = Gpt2().Follow("[ab]xyabc");
  ASSERT_TRUE(answer.Accept(kA));
  EXPECT_FALSE(answer.finished());
  EXPECT_THAT(answer.TakeForced(), ElementsAre(kXy, kAbc));
  EXPECT_TRUE(answer.finished());
}

TEST(GuidedAnswerTest, NothingIsForcedWhereThereIsAChoiceOrNoTokenizer) {
  GuidedAnswer choice = Gpt2().Follow("abc|xyabc");
  EXPECT_EQ(choice.num_forced(), 0u);
  GuidedAnswer may_end = Gpt2().Follow("a(abcxy)?");
  ASSERT_TRUE(may_end.Accept(kA));
  EXPECT_EQ(may_end.num_forced(), 0u);
  EXPECT_THAT(Allowed(may_end), ElementsAre(kEnd, kA, 7, kAbc));
  GuidedAnswer free = Gpt2().Follow("abcxy[ab]", /*forces=*/false);
  EXPECT_EQ(free.num_forced(), 0u);
  EXPECT_THAT(Allowed(free), ElementsAre(kA, 7, kAbc));
}

// SentencePiece puts a space before a text, which stands behind others here.
TEST(GuidedAnswerTest, ATextBehindOthersHasNoSpaceBeforeIt) {
  const Words words(TokenizerKind::kLlama,
                    {"</s>", "▁", "a", "b", "ab", "▁ab", "x", "y", "xy", "<0x0A>", "\n"}, {},
                    /*add_space_prefix=*/true);
  GuidedAnswer answer = words.Follow("abxy[ab]");
  EXPECT_THAT(answer.TakeForced(), ElementsAre(4));
  GuidedAnswer spaced = words.Follow(" abxy[ab]");
  EXPECT_THAT(spaced.TakeForced(), ElementsAre(5));
}

// A tokenizer that cannot write the text leaves it to single tokens.
TEST(GuidedAnswerTest, ATextWithoutTokensOfItsOwnIsLeftToTheMasks) {
  GuidedAnswer answer = Gpt2().Follow("abcqxy[ab]");
  EXPECT_EQ(answer.num_forced(), 0u);
}

}  // namespace
}  // namespace millrace
