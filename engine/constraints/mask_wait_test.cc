#include "engine/constraints/mask_wait.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST(MaskWaitTest, StepsWithoutMasksAreNotHeldUp) {
  MaskWait wait;
  const SteadyTime now{};
  wait.OnSubmit(/*masked=*/false);
  EXPECT_EQ(wait.Until(now), std::nullopt);
  wait.OnCommit(milliseconds(8));
  EXPECT_EQ(wait.Until(now), std::nullopt);
}

TEST(MaskWaitTest, TheNextStepIsPlannedOnceTheMasksAreThere) {
  MaskWait wait;
  const SteadyTime now{};
  wait.OnSubmit(/*masked=*/false);
  wait.OnSubmit(/*masked=*/true);
  EXPECT_EQ(wait.Until(now), SteadyTime::max());
  wait.OnCommit(milliseconds(8));
  EXPECT_EQ(wait.Until(now), SteadyTime::max());
  wait.OnCommit(milliseconds(8));
  wait.OnOrder(now);
  wait.OnOrder(now);
  EXPECT_EQ(wait.Until(now), now + milliseconds(1));
  wait.OnMade();
  EXPECT_EQ(wait.Until(now), now + milliseconds(1));
  wait.OnMade();
  EXPECT_EQ(wait.Until(now), std::nullopt);
}

TEST(MaskWaitTest, LateMasksHoldUpNobodyForLong) {
  MaskWait wait;
  const SteadyTime now{};
  wait.OnSubmit(/*masked=*/true);
  wait.OnCommit(milliseconds(8));
  wait.OnOrder(now);
  EXPECT_EQ(wait.Until(now + microseconds(999)), now + milliseconds(1));
  EXPECT_EQ(wait.Until(now + milliseconds(1)), std::nullopt);
  // However long a step takes.
  wait.OnSubmit(/*masked=*/true);
  wait.OnCommit(std::chrono::seconds(10));
  wait.OnOrder(now);
  EXPECT_EQ(wait.Until(now), now + milliseconds(5));
}

TEST(MaskWaitTest, AMaskHoldsAStepUpIfItTakesLongerThanOne) {
  MaskWait wait;
  EXPECT_FALSE(wait.HoldsUp(std::chrono::milliseconds(1)));  // no step has ended yet
  EXPECT_TRUE(wait.HoldsUp(std::chrono::milliseconds(2)));
  wait.OnSubmit(/*masked=*/true);
  wait.OnCommit(std::chrono::milliseconds(8));
  EXPECT_FALSE(wait.HoldsUp(std::chrono::milliseconds(8)));
  EXPECT_TRUE(wait.HoldsUp(std::chrono::milliseconds(9)));
}

}  // namespace
}  // namespace millrace
