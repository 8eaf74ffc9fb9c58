// Tests the layout of packed steps. They need no GPU.
#include "kernels/step/step_layout.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace millrace::kernels {
namespace {

TEST(StepLayoutTest, ArraysFollowOneAnother) {
  constexpr StepLayout kAt({.copies = 3,
                            .rows = 5,
                            .host_tokens = 7,
                            .wanted = 4,
                            .appends = 2,
                            .biases = 6,
                            .history = 10,
                            .starts = 2});
  EXPECT_EQ(kAt.copies, 0);
  EXPECT_EQ(kAt.row_first, 6);
  EXPECT_EQ(kAt.row_start, 12);
  EXPECT_EQ(kAt.row_slot, 17);
  EXPECT_EQ(kAt.row_source, 22);
  EXPECT_EQ(kAt.host_tokens, 27);
  EXPECT_EQ(kAt.wanted_token, 34);
  EXPECT_EQ(kAt.wanted_row, 38);
  EXPECT_EQ(kAt.wanted_target, 42);
  EXPECT_EQ(kAt.wanted_mask, 46);
  EXPECT_EQ(kAt.appends, 50);
  EXPECT_EQ(kAt.biases, 56);
  EXPECT_EQ(kAt.history, 80);
  EXPECT_EQ(kAt.start_slots, 110);
  EXPECT_EQ(kAt.starts, 112);
  EXPECT_EQ(kAt.end, static_cast<int64_t>(112 + 2 * sizeof(SlotSampling) / 4));
}

// A step without rows still says how many tokens it has: none.
TEST(StepLayoutTest, AnEmptyStepHasOneWord) {
  constexpr StepLayout kAt({});
  EXPECT_EQ(kAt.row_first, 0);
  EXPECT_EQ(kAt.end, 1);
}

TEST(StepLayoutTest, LargeStepsDoNotOverflow) {
  constexpr StepLayout kAt({.appends = 1 << 30, .biases = 1 << 30});
  EXPECT_EQ(kAt.end, 1 + (int64_t{7} << 30));
}

}  // namespace
}  // namespace millrace::kernels
