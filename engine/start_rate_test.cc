#include "engine/start_rate.h"

#include <chrono>

#include "engine/request/request.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr SteadyTime kBegin = SteadyTime(std::chrono::hours(1));

TEST(StartRateTest, SaysNothingBeforeItHasSeenAQueueMove) {
  StartRate rate;
  EXPECT_FALSE(rate.Wait(1, 0).has_value());
  for (uint64_t key = 0; key < 100; ++key) rate.Arrived(key, 1, 0);
  for (uint64_t key = 0; key < 8; ++key) rate.Begun(key, kBegin + key * seconds(1));
  EXPECT_FALSE(rate.Wait(1, 0).has_value());
  EXPECT_TRUE(rate.Check(1, 0, milliseconds(1)).ok());
}

TEST(StartRateTest, WaitIsTheQueueOverItsPace) {
  StartRate rate;
  for (uint64_t key = 0; key < 120; ++key) rate.Arrived(key, 1, key < 110 ? 0 : 5);
  for (uint64_t key = 0; key < 20; ++key) rate.Begun(key, kBegin + key * milliseconds(100));
  EXPECT_NEAR(ToSeconds(*rate.Wait(1, 0)), 9, 0.1);
  EXPECT_NEAR(ToSeconds(*rate.Wait(1, 5)), 10, 0.1);
  EXPECT_FALSE(rate.Wait(1, -1).has_value()) << "it goes first";
  EXPECT_FALSE(rate.Wait(2, 0).has_value()) << "another tenant's queue";
  for (uint64_t key = 20; key < 70; ++key) rate.Gone(key);
  rate.Gone(70'000);
  EXPECT_NEAR(ToSeconds(*rate.Wait(1, 0)), 4, 0.1);
}

TEST(StartRateTest, RefusesWhatWouldExpire) {
  StartRate rate;
  for (uint64_t key = 0; key < 110; ++key) rate.Arrived(key, 1, 0);
  for (uint64_t key = 0; key < 10; ++key) rate.Begun(key, kBegin + key * milliseconds(100));
  EXPECT_TRUE(rate.Check(1, 0, seconds(9)).ok());
  const absl::Status refused = rate.Check(1, 0, seconds(4));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NEAR(absl::ToDoubleSeconds(*RetryAfter(refused)), 6, 0.2);
  EXPECT_EQ(refused.GetPayload(kHttpStatusUrl), absl::Cord("503"));
}

// Between two bursts nothing waited: that time is no pace.
TEST(StartRateTest, IdleTimeDoesNotCount) {
  StartRate rate;
  uint64_t key = 0;
  SteadyTime now = kBegin;
  for (int burst = 0; burst < 20; ++burst) {
    for (uint64_t i = 0; i < 3; ++i) rate.Arrived(key + i, 1, 0);
    for (uint64_t i = 0; i < 3; ++i) rate.Begun(key++, now += milliseconds(10));
    now += seconds(100);
  }
  for (uint64_t i = 0; i < 3; ++i) rate.Arrived(key + i, 1, 0);
  EXPECT_FALSE(rate.Wait(1, 0).has_value()) << "these may be faster";
  for (uint64_t i = 0; i < 2; ++i) rate.Begun(key++, now += milliseconds(10));
  EXPECT_NEAR(ToSeconds(*rate.Wait(1, 0)), 0.01, 0.001);
}

}  // namespace
}  // namespace millrace
