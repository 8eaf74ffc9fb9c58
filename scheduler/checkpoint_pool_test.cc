#include "scheduler/checkpoint_pool.h"

#include <optional>

#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr CheckpointKind kWithin = CheckpointKind::kWithinPrompt;

BlockHash HashOf(int number) {
  BlockHash hash{};
  hash[0] = static_cast<uint8_t>(number);
  return hash;
}

// Takes a checkpoint and publishes it.
std::optional<CheckpointId> Publish(CheckpointPool& pool, int number, int32_t position,
                                    std::optional<CheckpointId> before = std::nullopt,
                                    CheckpointKind kind = kWithin) {
  const std::optional<CheckpointId> id = pool.Take(kind, position, before);
  if (!id.has_value()) return std::nullopt;
  pool.Name(*id, HashOf(number));
  pool.Finish(*id, true);
  return id;
}

TEST(CheckpointPoolTest, IsFoundOnceItsStepIsCommitted) {
  CheckpointPool pool(2);
  const auto id = pool.Take(kWithin, 16, std::nullopt);
  ASSERT_TRUE(id.has_value());
  pool.Name(*id, HashOf(1));
  EXPECT_EQ(pool.Find(HashOf(1)), std::nullopt);
  pool.Finish(*id, true);
  EXPECT_EQ(pool.Find(HashOf(1)), id);
  EXPECT_EQ(pool.num_published(), 1);
}

TEST(CheckpointPoolTest, WhatFailedOrIsNotKnownIsNotFound) {
  CheckpointPool pool(1);
  const auto failed = pool.Take(kWithin, 16, std::nullopt);
  pool.Name(*failed, HashOf(1));
  pool.Finish(*failed, false);
  EXPECT_EQ(pool.Find(HashOf(1)), std::nullopt);
  const auto unknown = pool.Take(kWithin, 16, std::nullopt);
  pool.Finish(*unknown, true);
  const auto withdrawn = pool.Take(kWithin, 16, std::nullopt);
  pool.Name(*withdrawn, HashOf(1));
  pool.Unpublish(HashOf(1));
  pool.Finish(*withdrawn, true);
  EXPECT_EQ(pool.num_published(), 0);
  EXPECT_TRUE(pool.Take(kWithin, 16, std::nullopt).has_value());  // no place was lost
}

TEST(CheckpointPoolTest, ThereIsOneOfAPrefix) {
  CheckpointPool pool(2);
  const auto first = Publish(pool, 1, 16);
  Publish(pool, 1, 16);
  EXPECT_EQ(pool.Find(HashOf(1)), first);
  EXPECT_EQ(pool.num_published(), 1);
  EXPECT_TRUE(Publish(pool, 2, 16).has_value());
  EXPECT_EQ(pool.num_evicted(), 0);
}

// Not the one that was used longest ago, but the one that saves least.
TEST(CheckpointPoolTest, TheOneThatSavesLeastGivesWay) {
  CheckpointPool pool(3);
  const auto prefix = Publish(pool, 1, 1000);
  Publish(pool, 2, 1040, prefix);
  Publish(pool, 3, 800);
  EXPECT_TRUE(Publish(pool, 4, 500).has_value());
  EXPECT_EQ(pool.Find(HashOf(2)), std::nullopt);  // 40 tokens after another
  EXPECT_TRUE(pool.Find(HashOf(1)).has_value());
  EXPECT_TRUE(pool.Find(HashOf(3)).has_value());
  EXPECT_EQ(pool.num_evicted(), 1);
}

// Three are remembered. The first one's first time is the fourth last.
TEST(CheckpointPoolTest, OneThatGaveWayTwiceIsRememberedFromTheLastTimeOn) {
  CheckpointPool pool(3);
  Publish(pool, 8, 5000);
  Publish(pool, 9, 5000);
  Publish(pool, 1, 10);
  Publish(pool, 2, 20);
  EXPECT_TRUE(pool.CountMissed(HashOf(1)));
  EXPECT_FALSE(pool.CountMissed(HashOf(1)));
  Publish(pool, 1, 30);
  Publish(pool, 3, 40);
  Publish(pool, 4, 50);
  ASSERT_EQ(pool.num_evicted(), 4);
  EXPECT_TRUE(pool.CountMissed(HashOf(1)));
}

TEST(CheckpointPoolTest, OneThatFollowsSavesMoreWithoutTheOneBefore) {
  CheckpointPool pool(3);
  const auto prefix = Publish(pool, 1, 100);
  Publish(pool, 2, 150, prefix);  // saves 50
  Publish(pool, 3, 120);
  pool.Unpublish(HashOf(1));
  EXPECT_TRUE(Publish(pool, 4, 140).has_value());
  EXPECT_TRUE(Publish(pool, 5, 130).has_value());  // 120 tokens give way, and not 150
  EXPECT_TRUE(pool.Find(HashOf(2)).has_value());
  EXPECT_EQ(pool.Find(HashOf(3)), std::nullopt);
}

TEST(CheckpointPoolTest, ANewOneThatSavesLessIsNotTaken) {
  CheckpointPool pool(1);
  Publish(pool, 1, 100);
  EXPECT_EQ(Publish(pool, 2, 60), std::nullopt);
  EXPECT_TRUE(pool.Find(HashOf(1)).has_value());
  // The next is ranked after the first by those 60.
  EXPECT_TRUE(Publish(pool, 3, 60).has_value());
  EXPECT_EQ(pool.Find(HashOf(1)), std::nullopt);
}

TEST(CheckpointPoolTest, AHitRanksItAnew) {
  CheckpointPool pool(2);
  const auto first = Publish(pool, 1, 100);
  Publish(pool, 2, 110);
  EXPECT_EQ(Publish(pool, 3, 90), std::nullopt);  // moves the clock to 90
  pool.Hold(*first);
  EXPECT_TRUE(Publish(pool, 4, 300).has_value());  // in the other's place, since one is held
  EXPECT_EQ(pool.Find(HashOf(2)), std::nullopt);
  pool.Release(*first);  // ranks at 110 + 100
  EXPECT_EQ(Publish(pool, 5, 99), std::nullopt);
  EXPECT_EQ(pool.Find(HashOf(1)), first);
}

TEST(CheckpointPoolTest, AHeldOneKeepsItsPlace) {
  CheckpointPool pool(1);
  const auto id = Publish(pool, 1, 100);
  pool.Hold(*id);
  pool.Hold(*id);
  EXPECT_EQ(pool.Take(kWithin, 1000, std::nullopt), std::nullopt);
  pool.Unpublish(HashOf(1));
  EXPECT_EQ(pool.Find(HashOf(1)), std::nullopt);
  pool.Release(*id);
  EXPECT_EQ(pool.Take(kWithin, 1000, std::nullopt), std::nullopt);
  pool.Release(*id);
  EXPECT_EQ(pool.Take(kWithin, 1000, std::nullopt), id);
}

TEST(CheckpointPoolTest, AnAnswersLastOneReplacesTheOneBefore) {
  CheckpointPool pool(2);
  const auto id = Publish(pool, 1, 32);
  EXPECT_FALSE(pool.TakeAgain(*id, HashOf(2), 48, std::nullopt));  // another's
  ASSERT_TRUE(pool.TakeAgain(*id, HashOf(1), 48, std::nullopt));
  EXPECT_EQ(pool.Find(HashOf(1)), std::nullopt);
  pool.Name(*id, HashOf(2));
  pool.Finish(*id, true);
  EXPECT_EQ(pool.Find(HashOf(2)), id);
  pool.Hold(*id);
  pool.Release(*id);
  EXPECT_FALSE(pool.TakeAgain(*id, HashOf(2), 64, std::nullopt));  // others begin there
}

// Turns of a chat whose answers come back otherwise than they were: each begins from the end of the
// prompt before. What turns have left behind gives way, not what the next one begins from.
TEST(CheckpointPoolTest, WhatTurnsHaveLeftBehindGivesWay) {
  CheckpointPool pool(3);
  auto prompt = Publish(pool, 1, 100, std::nullopt, CheckpointKind::kPromptEnd);
  for (int turn = 1; turn < 20; ++turn) {
    Publish(pool, 100 + turn, 100 * turn + 90, prompt, CheckpointKind::kAnswer);
    pool.Hold(*prompt);
    const auto next = Publish(pool, turn + 1, 100 * turn + 100, prompt, CheckpointKind::kPromptEnd);
    pool.Release(*prompt);
    ASSERT_TRUE(next.has_value()) << turn;
    prompt = next;
  }
  // Of one chat they take no more than one place but the one that waits for its next turn.
  EXPECT_TRUE(pool.Find(HashOf(20)).has_value());
  Publish(pool, 200, 50);
  Publish(pool, 201, 50);
  EXPECT_TRUE(pool.Find(HashOf(20)).has_value());
}

// A sequence that would have begun from one that gave way says that its kind is of use.
TEST(CheckpointPoolTest, WhatIsMissedCountsAsOfUse) {
  const auto takes_answers = [](bool missed) {
    CheckpointPool pool(2);
    Publish(pool, 1, 1000);
    for (int i = 0; i < 40; ++i) {
      Publish(pool, 100 + i, 100, std::nullopt, CheckpointKind::kAnswer);
      if (missed) pool.CountMissed(HashOf(100 + i - 1));
    }
    // Beside one of a prompt that saves half as much.
    Publish(pool, 2, 50);
    Publish(pool, 3, 100, std::nullopt, CheckpointKind::kAnswer);
    Publish(pool, 4, 60);
    return pool.Find(HashOf(3)).has_value();
  };
  EXPECT_TRUE(takes_answers(true));
  EXPECT_FALSE(takes_answers(false));
}

}  // namespace
}  // namespace millrace
