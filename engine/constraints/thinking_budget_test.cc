#include "engine/constraints/thinking_budget.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace millrace {
namespace {

// Tokens: every byte of ASCII, then these.
constexpr Token kThinkOpen = 128, kThinkClose = 129, kThinkBegin = 130, kEnd = 131;

std::shared_ptr<const GrammarVocabulary> Vocabulary() {
  static const auto& bytes = *new std::vector<std::string>([] {
    std::vector<std::string> made;
    for (char byte = 0; made.size() < 128; ++byte) made.emplace_back(1, byte);
    return made;
  }());
  std::vector<VocabularyToken> tokens;
  for (const std::string& byte : bytes) tokens.push_back({byte, false});
  tokens.push_back({"<think>", true});
  tokens.push_back({"</think>", true});
  tokens.push_back({"</thi", false});
  tokens.push_back({"<end>", true});
  return std::make_shared<GrammarVocabulary>(tokens, std::vector<Token>{kEnd}, 140);
}

ThinkingBudget Make(int32_t tokens, bool inside) {
  return *ThinkingBudget::Create({.pairs = {{"<think>", "</think>"}}, .inside = inside}, tokens,
                                 Vocabulary());
}

void Write(ThinkingBudget& budget, std::string_view text) {
  for (const char c : text) {
    ASSERT_TRUE(MaskAllows(**budget.Mask(), c)) << c;
    ASSERT_TRUE(budget.Accept(c));
  }
}

std::vector<Token> Allowed(ThinkingBudget& budget) {
  std::vector<Token> allowed;
  for (Token token = 0; token < 160; ++token) {
    if (MaskAllows(**budget.Mask(), token)) allowed.push_back(token);
  }
  return allowed;
}

TEST(ThinkingBudgetTest, ForcesTheEndOnceTheBudgetIsSpent) {
  ThinkingBudget budget = Make(3, /*inside=*/true);
  Write(budget, "ab");
  EXPECT_EQ(Allowed(budget).size(), 140U);  // of the model's logits, no more
  Write(budget, "c");
  // The special token, its text, and what its text begins with.
  EXPECT_EQ(Allowed(budget), (std::vector<Token>{'<', kThinkClose, kThinkBegin}));
  EXPECT_FALSE(budget.Accept('x'));
  EXPECT_FALSE(budget.Accept(kEnd));
  ASSERT_TRUE(budget.Accept(kThinkBegin));
  EXPECT_EQ(Allowed(budget), std::vector<Token>{'n'});
  Write(budget, "nk>");
  EXPECT_EQ(Allowed(budget).size(), 140U);
  Write(budget, "The answer may be as long as it likes.");
}

TEST(ThinkingBudgetTest, CountsNothingOutsideOfTheReasoning) {
  ThinkingBudget budget = Make(9, /*inside=*/false);
  Write(budget, "long before it opens <think>");
  // Until the closing marker is whole, its letters are of the reasoning.
  Write(budget, "a</think>");
  EXPECT_EQ(Allowed(budget).size(), 140U);
  Write(budget, "long after it");
  EXPECT_EQ(Allowed(budget).size(), 140U);
}

TEST(ThinkingBudgetTest, AMarkerThatIsATokenIsNotCounted) {
  ThinkingBudget budget = Make(2, /*inside=*/false);
  ASSERT_TRUE(budget.Accept(kThinkOpen));
  Write(budget, "a");
  ASSERT_TRUE(budget.Accept(kThinkClose));
  Write(budget, "free");
  // A second reasoning has the rest of the budget.
  ASSERT_TRUE(budget.Accept(kThinkOpen));
  EXPECT_EQ(Allowed(budget).size(), 140U);
  Write(budget, "b");
  EXPECT_EQ(Allowed(budget).size(), 3U);
}

TEST(ThinkingBudgetTest, ReasoningMayBeAtTheBeginningAlone) {
  const auto make = [](bool inside) {
    return *ThinkingBudget::Create(
        {.pairs = {{"<think>", "</think>"}}, .inside = inside, .once = true}, 1, Vocabulary());
  };
  ThinkingBudget first = make(false);
  Write(first, "\n");
  ASSERT_TRUE(first.Accept(kThinkOpen));
  Write(first, "a");
  EXPECT_EQ(Allowed(first).size(), 3U);
  ASSERT_TRUE(first.Accept(kThinkClose));
  // Markers after the reasoning, or behind other text, begin no reasoning.
  ASSERT_TRUE(first.Accept(kThinkOpen));
  Write(first, "abc");
  ThinkingBudget content = make(false);
  Write(content, "{\"<think>abc");
  ThinkingBudget inside = make(true);
  Write(inside, "a</think>");
  Write(inside, "<think>abc");
}

TEST(ThinkingBudgetTest, NarrowsAGrammarsMask) {
  ThinkingBudget budget = Make(1, /*inside=*/true);
  const auto allowed = [&](const std::shared_ptr<const TokenMask>& mask) {
    std::vector<Token> tokens;
    for (Token token = 0; token < 160; ++token) {
      if (MaskAllows(**budget.Narrow(mask), token)) tokens.push_back(token);
    }
    return tokens;
  };
  auto some = std::make_shared<TokenMask>(5);
  for (const Token token : {Token{'a'}, Token{'<'}, kThinkClose}) {
    (*some)[token / 32] |= 1U << (token % 32);
  }
  EXPECT_EQ(allowed(some), (std::vector<Token>{'<', 'a', kThinkClose}));
  Write(budget, "a");
  EXPECT_EQ(allowed(some), (std::vector<Token>{'<', kThinkClose}));
}

TEST(ThinkingBudgetTest, ABudgetOfNothingEndsTheReasoningAtOnce) {
  ThinkingBudget inside = Make(0, /*inside=*/true);
  EXPECT_EQ(Allowed(inside).size(), 3U);
  ThinkingBudget outside = Make(0, /*inside=*/false);
  EXPECT_EQ(Allowed(outside).size(), 140U);
  ASSERT_TRUE(outside.Accept(kThinkOpen));
  EXPECT_EQ(Allowed(outside).size(), 3U);
  // A copy goes on by itself.
  ThinkingBudget copy = outside;
  ASSERT_TRUE(copy.Accept(kThinkClose));
  EXPECT_EQ(Allowed(outside).size(), 3U);
  EXPECT_EQ(Allowed(copy).size(), 140U);
}

TEST(ThinkingBudgetTest, EachSpellingEndsTheReasoningAndIsEndedByItsCounterpart) {
  const auto make = [](bool once) {
    return *ThinkingBudget::Create(
        {.pairs = {{"[a]", "[/a]"}, {"(b)", "(/b)"}}, .closes = {"END"}, .once = once}, 4,
        Vocabulary());
  };
  for (const bool once : {false, true}) {
    ThinkingBudget first = make(once);
    Write(first, "[a]xxxx");
    EXPECT_EQ(Allowed(first), std::vector<Token>{'['});
    ThinkingBudget second = make(once);
    Write(second, "(b)xxxx");
    EXPECT_EQ(Allowed(second), std::vector<Token>{'('});
    ThinkingBudget crossed = make(once);
    Write(crossed, "(b)[/a]any text of any length");
    EXPECT_EQ(Allowed(crossed).size(), 140U);
    ThinkingBudget other = make(once);
    Write(other, "[a]xENDany text of any length");
    EXPECT_EQ(Allowed(other).size(), 140U);
  }
}

}  // namespace
}  // namespace millrace
