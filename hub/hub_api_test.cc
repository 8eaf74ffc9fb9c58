#include "hub/hub_api.h"

#include <atomic>
#include <chrono>
#include <vector>

#include "base/clock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(WithAttemptsTest, WaitsLongerEachTimeAndThenGivesUp) {
  const std::atomic<bool> stop = false;
  HubOptions options;
  options.first_pause = std::chrono::milliseconds(10);
  options.stop = &stop;
  std::vector<SteadyTime> times;
  const absl::Status status = WithAttempts(options, 4, [&] {
    times.push_back(Clock::Real().Now());
    return absl::UnavailableError("again");
  });
  EXPECT_EQ(status, absl::UnavailableError("again"));
  ASSERT_EQ(times.size(), 4u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_GE(times[i + 1] - times[i], options.first_pause * (1 << i)) << i;
  }
}

TEST(WithAttemptsTest, WhatAnotherTryDoesNotHelpIsTriedOnce) {
  const std::atomic<bool> stop = false;
  HubOptions options;
  options.stop = &stop;
  int attempts = 0;
  const absl::Status status = WithAttempts(options, 4, [&] {
    ++attempts;
    return absl::NotFoundError("none");
  });
  EXPECT_EQ(status, absl::NotFoundError("none"));
  EXPECT_EQ(attempts, 1);
}

}  // namespace
}  // namespace millrace
