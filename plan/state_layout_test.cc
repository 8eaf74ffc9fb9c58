#include "plan/state_layout.h"

#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(StateLayoutTest, OnePoolHasEveryPosition) {
  const StateLayout layout = StateLayout::OnePool(16, 4096);
  ASSERT_EQ(layout.num_groups(), 1);
  EXPECT_EQ(layout.num_paged_groups(), 1);
  ASSERT_NE(layout.Paged(0), nullptr);
  EXPECT_EQ(layout.Paged(0)->block_bytes, 4096);
  EXPECT_EQ(layout.Paged(0)->window, std::nullopt);
  EXPECT_EQ(layout.BlocksBehindWindow(0, 1 << 20), 0);
}

TEST(StateLayoutTest, BlocksForCountsTheLastOneInPart) {
  const StateLayout layout = StateLayout::OnePool(16);
  EXPECT_EQ(layout.BlocksFor(0), 0);
  EXPECT_EQ(layout.BlocksFor(1), 1);
  EXPECT_EQ(layout.BlocksFor(16), 1);
  EXPECT_EQ(layout.BlocksFor(17), 2);
}

// Position p is read by p, p + 1, …, p + window - 1. By definition, then: a block may go if none of
// its positions is read from `next` on.
TEST(StateLayoutTest, ABlockIsBehindTheWindowOnceNoLaterPositionReadsIt) {
  for (const int32_t window : {1, 2, 15, 16, 17, 128}) {
    const StateLayout layout{.block_size = 16, .groups = {PagedState{.window = window}}};
    for (int32_t next = 0; next < 300; ++next) {
      int32_t behind = 0;
      while (16 * behind + 15 + window - 1 < next) ++behind;
      EXPECT_EQ(layout.BlocksBehindWindow(0, next), behind) << window << " " << next;
    }
  }
}

TEST(StateLayoutTest, AGroupOfSlotsHasNoPages) {
  const StateLayout layout{
      .block_size = 16, .groups = {SlotState{.bytes = 100}, PagedState{.window = 8}, PagedState()}};
  EXPECT_EQ(layout.num_groups(), 3);
  EXPECT_EQ(layout.num_paged_groups(), 2);
  EXPECT_EQ(layout.Paged(0), nullptr);
  EXPECT_EQ(layout.Paged(1)->window, 8);
}

TEST(StateLayoutTest, AddsUpTheSlotsOfASequence) {
  const StateLayout layout{
      .block_size = 16,
      .groups = {SlotState{.bytes = 100}, PagedState{.block_bytes = 7}, SlotState{.bytes = 20}}};
  EXPECT_TRUE(layout.has_slots());
  EXPECT_EQ(layout.SlotBytes(), 120);
  EXPECT_EQ(layout.MoveBytes(0), 100);
  EXPECT_EQ(layout.MoveBytes(1), 7);
  EXPECT_FALSE(StateLayout::OnePool(16, 7).has_slots());
  EXPECT_EQ(StateLayout::OnePool(16, 7).SlotBytes(), 0);
}

}  // namespace
}  // namespace millrace
