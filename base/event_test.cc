#include "base/event.h"

#include <gtest/gtest.h>

#include <array>
#include <mutex>
#include <thread>

namespace millrace {
namespace {

TEST(EventTest, ARaiseBeforeTheWaitIsNotLost) {
  Event event;
  event.Raise();
  EXPECT_TRUE(event.Wait());
}

TEST(EventTest, SeveralRaisesAreOne) {
  Event event;
  event.Raise();
  event.Raise();
  EXPECT_TRUE(event.Wait());
  EXPECT_FALSE(event.Wait(Clock::Real().Now()));
}

TEST(EventTest, APassedDeadlineStillSeesTheFlag) {
  Event event;
  const SteadyTime passed = Clock::Real().Now() - std::chrono::seconds(1);
  EXPECT_FALSE(event.Wait(passed));
  event.Raise();
  EXPECT_TRUE(event.Wait(passed));
}

TEST(EventTest, WakesASleeperBeforeItsDeadline) {
  Event event;
  std::thread raiser([&] { event.Raise(); });
  EXPECT_TRUE(event.Wait(Clock::Real().Now() + std::chrono::minutes(5)));
  raiser.join();
}

// With several sources and one waiter, every write before a Raise is seen and no Raise is missed.
TEST(EventTest, ManySourcesLoseNothing) {
  constexpr int kSources = 4;
  constexpr int kEach = 2000;
  Event event;
  std::mutex mutex;
  int written = 0;  // guarded by mutex
  std::array<std::thread, kSources> sources;
  for (std::thread& source : sources) {
    source = std::thread([&] {
      for (int n = 0; n < kEach; ++n) {
        {
          std::lock_guard lock(mutex);
          ++written;
        }
        event.Raise();
      }
    });
  }
  int seen = 0;
  while (seen < kSources * kEach) {
    ASSERT_TRUE(event.Wait(Clock::Real().Now() + std::chrono::minutes(1)));
    std::lock_guard lock(mutex);
    seen = written;
  }
  for (std::thread& source : sources) source.join();
  EXPECT_EQ(seen, kSources * kEach);
}

}  // namespace
}  // namespace millrace
