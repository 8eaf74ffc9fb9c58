#include "engine/drafters.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace millrace {
namespace {

using Tokens = std::vector<Token>;

SequenceRequest Sequence(Tokens prompt, int32_t max_tokens = 10) {
  SequenceRequest sequence;
  sequence.prompt = std::move(prompt);
  sequence.stop.max_tokens = max_tokens;
  return sequence;
}

TEST(DraftersTest, LooksUpThePrompt) {
  Drafters drafters(LookupOptions(), 16);
  const auto drafter = drafters.Make(Sequence({1, 2, 3, 4, 5, 1, 2, 3}), nullptr, "");
  ASSERT_NE(drafter, nullptr);
  EXPECT_EQ(drafter->Draft(2), Tokens({4, 5}));
}

TEST(DraftersTest, MakesNoneWhereNothingIsDrafted) {
  EXPECT_EQ(Drafters(std::nullopt, 16).Make(Sequence({1}), nullptr, ""), nullptr);
  EXPECT_EQ(Drafters(LookupOptions(), 0).Make(Sequence({1}), nullptr, ""), nullptr);
  EXPECT_EQ(Drafters(LookupOptions(), 16).Make(Sequence({1}, 1), nullptr, ""), nullptr);
  EXPECT_EQ(Drafters(LookupOptions(), 16).Make(Sequence({1}, 0), nullptr, ""), nullptr);
}

TEST(DraftersTest, DraftsNoLongerThanTheModelTakes) {
  Drafters drafters(LookupOptions{.max_tokens = 8}, 2);
  const auto drafter = drafters.Make(Sequence({1, 2, 3, 4, 5, 1, 2, 3}), nullptr, "");
  EXPECT_EQ(drafter->Draft(8), Tokens({4, 5}));
}

TEST(DraftersTest, FollowsAPrediction) {
  Drafters drafters(LookupOptions(), 16);
  const auto prediction = drafters.IndexPrediction(Tokens{7, 8, 9}, "");
  EXPECT_EQ(drafters.Make(Sequence({1}), prediction, "")->Draft(2), Tokens({7, 8}));
  // What an answer has of it is counted also where nothing is drafted.
  EXPECT_NE(Drafters(std::nullopt, 0).IndexPrediction(Tokens{7}, ""), nullptr);
}

TEST(DraftersTest, MakesNoneBeyondItsMemory) {
  Drafters drafters(LookupOptions(), 16, size_t{1} << 20);
  const SequenceRequest sequence = Sequence(Tokens(1000, 1));
  std::vector<std::shared_ptr<Drafter>> held;
  while (auto drafter = drafters.Make(sequence, nullptr, "one")) held.push_back(std::move(drafter));
  EXPECT_GT(held.size(), 6u);
  EXPECT_EQ(drafters.IndexPrediction(sequence.prompt, "one"), nullptr);
  // Another tenant has its part, and what ends makes room; a clone holds what it shares.
  EXPECT_NE(drafters.Make(sequence, nullptr, "two"), nullptr);
  const std::unique_ptr<Drafter> clone = held.back()->Clone();
  held.pop_back();
  EXPECT_EQ(drafters.Make(sequence, nullptr, "one"), nullptr);
  held.pop_back();
  EXPECT_NE(drafters.Make(sequence, nullptr, "one"), nullptr);
}

}  // namespace
}  // namespace millrace
