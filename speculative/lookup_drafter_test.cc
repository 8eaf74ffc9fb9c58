#include "speculative/lookup_drafter.h"

#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace millrace {
namespace {

using Tokens = std::vector<Token>;

LookupDrafter Make(const LookupOptions& options, const Tokens& prompt,
                   const Tokens& prediction = {}) {
  return LookupDrafter(
      options, LookupDrafter::IndexPrompt(options, prompt),
      prediction.empty() ? nullptr : LookupDrafter::IndexPrediction(options, prediction));
}

TEST(LookupDrafterTest, DraftsWhatFollowedInThePrompt) {
  LookupDrafter drafter = Make({}, {1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(drafter.Draft(8), Tokens());
  drafter.Append(Tokens{2, 3});
  EXPECT_EQ(drafter.Draft(8), Tokens());
  drafter.Append(Tokens{4});
  EXPECT_EQ(drafter.Draft(8), Tokens({5, 6, 7})) << "as many as it has in common";
  drafter.Append(Tokens{5});
  EXPECT_EQ(drafter.Draft(8), Tokens({6, 7, 8})) << "until the prompt ends";
  EXPECT_EQ(drafter.Draft(2), Tokens({6, 7}));
  EXPECT_EQ(drafter.Draft(0), Tokens());
  drafter.Append(Tokens{9});
  EXPECT_EQ(drafter.Draft(8), Tokens());
}

TEST(LookupDrafterTest, ThePromptsEndMayRepeatItself) {
  const LookupDrafter drafter = Make({}, {1, 2, 3, 4, 5, 6, 1, 2, 3});
  EXPECT_EQ(drafter.Draft(8), Tokens({4, 5, 6}));
}

TEST(LookupDrafterTest, ObeysTheOptions) {
  LookupDrafter drafter = Make({.min_match = 2, .max_tokens = 1}, {1, 2, 3, 4, 5});
  drafter.Append(Tokens{1});
  EXPECT_EQ(drafter.Draft(8), Tokens());
  drafter.Append(Tokens{2});
  EXPECT_EQ(drafter.Draft(8), Tokens({3}));
}

TEST(LookupDrafterTest, TakesTheLastOccurrenceOfTheLongestMatch) {
  LookupDrafter drafter = Make({}, {1, 2, 3, 4, 5, 0, 1, 2, 3, 6, 7, 0, 9, 2, 3, 8, 8});
  drafter.Append(Tokens{1, 2, 3});
  EXPECT_EQ(drafter.Draft(2), Tokens({6, 7}));
  // What the answer itself has said comes last.
  drafter.Append(Tokens{10, 11, 12, 1, 2, 3});
  EXPECT_EQ(drafter.Draft(2), Tokens({10, 11}));
}

TEST(LookupDrafterTest, GoesOnWithALoop) {
  LookupDrafter drafter = Make({}, {1});
  drafter.Append(Tokens{5, 6, 5, 6, 5, 6, 5});
  EXPECT_EQ(drafter.Draft(5), Tokens({6, 5, 6, 5, 6}));
  drafter = Make({}, {1});
  drafter.Append(Tokens(20, 7));
  EXPECT_EQ(drafter.Draft(8), Tokens(8, 7));
}

TEST(LookupDrafterTest, FollowsAPredictionFromItsBeginning) {
  LookupDrafter drafter = Make({}, {1, 2}, {10, 11, 12, 13, 14, 15, 16, 17});
  EXPECT_EQ(drafter.Draft(4), Tokens({10, 11, 12, 13}));
  drafter.Append(Tokens{10, 11});
  EXPECT_EQ(drafter.Draft(4), Tokens({12, 13, 14, 15}));
  // The answer deviates, and comes back.
  drafter.Append(Tokens{99});
  EXPECT_EQ(drafter.Draft(4), Tokens());
  drafter.Append(Tokens{13, 14});
  EXPECT_EQ(drafter.Draft(4), Tokens());
  drafter.Append(Tokens{15});
  EXPECT_EQ(drafter.Draft(4), Tokens({16, 17}));
  drafter.Append(Tokens{16, 17});
  EXPECT_EQ(drafter.Draft(4), Tokens());
}

// A part that stands in the prediction more than once is followed where the answer is.
TEST(LookupDrafterTest, StaysWhereItIsInAPrediction) {
  LookupDrafter drafter = Make({}, {1}, {5, 6, 7, 8, 10, 5, 6, 7, 8, 11});
  drafter.Append(Tokens{5, 6, 7});
  EXPECT_EQ(drafter.Draft(3), Tokens({8, 10, 5}));
  drafter.Append(Tokens{8, 10, 5, 6, 7, 8});
  EXPECT_EQ(drafter.Draft(3), Tokens({11}));
}

TEST(LookupDrafterTest, ClonesGoOnByThemselves) {
  LookupDrafter drafter = Make({}, {1, 2, 3, 4, 5, 6});
  drafter.Append(Tokens{1, 2});
  const std::unique_ptr<Drafter> clone = drafter.Clone();
  clone->Append(Tokens{3});
  drafter.Append(Tokens{9});
  EXPECT_EQ(clone->Draft(8), Tokens({4, 5, 6}));
  EXPECT_EQ(drafter.Draft(8), Tokens());
}

TEST(LookupDrafterTest, TheSameTokensGiveTheSameDraft) {
  std::mt19937 random(1);
  Tokens prompt(500);
  for (Token& token : prompt) token = static_cast<Token>(random() % 4);
  LookupDrafter one_by_one = Make({}, prompt);
  LookupDrafter at_once = Make({}, prompt);
  Tokens answer(100);
  for (Token& token : answer) token = static_cast<Token>(random() % 4);
  for (const Token token : answer) one_by_one.Append(Tokens{token});
  at_once.Append(answer);
  EXPECT_EQ(one_by_one.Draft(8), at_once.Draft(8));
  EXPECT_FALSE(at_once.Draft(8).empty());
}

// Of a long answer the last tokens are looked up, and those of the part before.
TEST(LookupDrafterTest, ForgetsTheBeginningOfALongAnswer) {
  LookupDrafter drafter = Make({}, {1});
  Tokens distinct;
  for (Token token = 100; token < 100 + LookupDrafter::kMaxAnswerTokens; ++token) {
    distinct.push_back(token);
  }
  drafter.Append(distinct);
  drafter.Append(Tokens{100, 101, 102});
  EXPECT_EQ(drafter.Draft(2), Tokens({103, 104})) << "of the part before";
  for (Token& token : distinct) token += LookupDrafter::kMaxAnswerTokens;
  drafter.Append(distinct);
  drafter.Append(Tokens{200, 201, 202});
  EXPECT_EQ(drafter.Draft(2), Tokens()) << "of the part before that";
}

TEST(LookupDrafterTest, LooksUpTheLastTokensOfALongPrompt) {
  Tokens prompt(LookupDrafter::kMaxTextTokens + 10, 0);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<Token>(i);
  LookupDrafter drafter = Make({}, prompt);
  drafter.Append(Tokens{0, 1, 2});
  EXPECT_EQ(drafter.Draft(2), Tokens());
  drafter.Append(Tokens{10, 11, 12});
  EXPECT_EQ(drafter.Draft(2), Tokens({13, 14}));
}

}  // namespace
}  // namespace millrace
