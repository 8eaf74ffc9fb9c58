#include "scheduler/block_pool.h"

#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;

// The pool's table looks at the first bytes: all names fall into three buckets.
BlockHash Named(uint8_t name) {
  BlockHash hash{};
  hash[0] = name % 3;
  hash[31] = name;
  return hash;
}

std::vector<BlockId> Allocate(BlockPool& pool, int count) {
  std::vector<BlockId> blocks;
  blocks.reserve(count);
  for (int i = 0; i < count; ++i) blocks.push_back(pool.Allocate());
  return blocks;
}

TEST(BlockPoolTest, HandsOutEachBlockOnce) {
  BlockPool pool(3);
  EXPECT_THAT(Allocate(pool, 3), ElementsAre(0, 1, 2));
  EXPECT_EQ(pool.num_available(), 0);
  EXPECT_EQ(pool.num_held(), 3);
  pool.Release({1});
  EXPECT_EQ(pool.num_available(), 1);
  EXPECT_EQ(pool.Allocate(), 1);
}

TEST(BlockPoolTest, ABlockIsAvailableWhenItsLastHolderLetsGo) {
  BlockPool pool(1);
  const BlockId block = pool.Allocate();
  pool.Hold(block);
  pool.Release({block});
  EXPECT_EQ(pool.num_holders(block), 1);
  EXPECT_EQ(pool.num_available(), 0);
  pool.Release({block});
  EXPECT_EQ(pool.num_available(), 1);
}

TEST(BlockPoolTest, APublishedBlockIsFoundHeldOrNotUntilItIsReused) {
  BlockPool pool(2);
  const BlockId block = pool.Allocate();
  EXPECT_EQ(pool.Find(Named(1)), std::nullopt);
  pool.Publish(block, Named(1));
  EXPECT_EQ(pool.Find(Named(1)), block);
  EXPECT_EQ(pool.num_cached(), 0);
  pool.Release({block});
  EXPECT_EQ(pool.Find(Named(1)), block);
  EXPECT_EQ(pool.num_cached(), 1);
  pool.Hold(block);
  EXPECT_EQ(pool.num_cached(), 0);
  EXPECT_EQ(pool.num_available(), 1);
  pool.Release({block});
  Allocate(pool, 2);
  EXPECT_EQ(pool.Find(Named(1)), std::nullopt);
  EXPECT_EQ(pool.num_cached(), 0);
}

TEST(BlockPoolTest, BlocksWithoutContentGoFirstThenTheLongestReleasedTailFirst) {
  BlockPool pool(7);
  const std::vector<BlockId> blocks = Allocate(pool, 7);
  for (uint8_t i = 0; i < 5; ++i) pool.Publish(blocks[i], Named(i));
  pool.Release({0, 1, 5});  // 5 was never published
  pool.Release({2, 3, 4, 6});
  pool.Hold(1);
  pool.Release({1});  // used again: now the latest
  EXPECT_THAT(Allocate(pool, 7), ElementsAre(6, 5, 0, 4, 3, 2, 1));
}

TEST(BlockPoolTest, TheFirstBlockOfAContentStaysTheOneThatIsFound) {
  BlockPool pool(2);
  const std::vector<BlockId> blocks = Allocate(pool, 2);
  pool.Publish(0, Named(1));
  pool.Publish(1, Named(1));
  EXPECT_EQ(pool.Find(Named(1)), 0);
  pool.Release(blocks);
  EXPECT_EQ(pool.num_cached(), 1);
  EXPECT_THAT(Allocate(pool, 2), ElementsAre(1, 0));
}

TEST(BlockPoolTest, AnUnpublishedBlockIsNotFoundAndReusedFirst) {
  BlockPool pool(4);
  const std::vector<BlockId> blocks = Allocate(pool, 4);
  for (uint8_t i = 0; i < 4; ++i) pool.Publish(blocks[i], Named(i));
  pool.Unpublish(3);  // held
  pool.Release(blocks);
  pool.Unpublish(1);  // available
  EXPECT_EQ(pool.num_cached(), 2);
  for (uint8_t i = 0; i < 4; ++i) EXPECT_EQ(pool.Find(Named(i)).has_value(), i % 2 == 0);
  EXPECT_THAT(Allocate(pool, 4), ElementsAre(1, 3, 2, 0));
}

TEST(BlockPoolTest, FindsEachOfManyThatShareBuckets) {
  BlockPool pool(200);
  for (int i = 0; i < 200; ++i) pool.Publish(pool.Allocate(), Named(static_cast<uint8_t>(i)));
  for (int i = 0; i < 200; i += 3) pool.Unpublish(i);
  for (int i = 0; i < 200; ++i) {
    const std::optional<BlockId> want = i % 3 == 0 ? std::nullopt : std::optional<BlockId>(i);
    EXPECT_EQ(pool.Find(Named(static_cast<uint8_t>(i))), want) << i;
  }
}

}  // namespace
}  // namespace millrace
