#include "base/clock.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

using std::chrono::milliseconds;

TEST(ManualClockTest, MovesOnlyWhenAdvanced) {
  ManualClock clock;
  const SteadyTime start = clock.Now();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(milliseconds(1500));
  EXPECT_EQ(clock.Now() - start, milliseconds(1500));
  EXPECT_NE(start, SteadyTime());
}

TEST(RealClockTest, NeverGoesBack) {
  const SteadyTime first = Clock::Real().Now();
  EXPECT_GE(Clock::Real().Now(), first);
}

TEST(ToSecondsTest, KeepsTheFraction) {
  EXPECT_DOUBLE_EQ(ToSeconds(milliseconds(1500)), 1.5);
  EXPECT_DOUBLE_EQ(ToSeconds(-milliseconds(1)), -0.001);
}

}  // namespace
}  // namespace millrace
