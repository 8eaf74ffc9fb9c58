#include "executors/rank_threads.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(RankThreadsTest, EachRankRunsEachBodyOnceOnItsOwnThread) {
  for (const int size : {1, 2, 5}) {
    RankThreads ranks(size, seconds(60));
    std::vector<std::thread::id> threads(size);
    std::vector<int> runs(size, 0);
    for (int run = 1; run <= 50; ++run) {
      EXPECT_TRUE(ranks
                      .Run([&](int rank) {
                        ++runs[rank];
                        threads[rank] = std::this_thread::get_id();
                        return absl::OkStatus();
                      })
                      .ok());
      EXPECT_EQ(runs, std::vector<int>(size, run));
    }
    for (int rank = 1; rank < size; ++rank) EXPECT_NE(threads[rank], threads[0]);
    EXPECT_NE(threads[0], std::this_thread::get_id());
    EXPECT_TRUE(ranks.WaitIdle(seconds(0)));
  }
}

// All ranks read after a barrier what each wrote before it, and none writes before all have read.
TEST(RankThreadsTest, BarriersKeepRanksInStep) {
  constexpr int kSize = 4, kRounds = 300;
  RankThreads ranks(kSize, seconds(60));
  std::vector<int> values(kSize, 0);
  std::atomic<int> wrong = 0;
  const auto body = [&](int rank) {
    for (int round = 1; round <= kRounds; ++round) {
      values[rank] = round * (rank + 1);
      if (!ranks.group().Barrier(rank)) return absl::InternalError("aborted");
      for (int other = 0; other < kSize; ++other) wrong += values[other] != round * (other + 1);
      if (!ranks.group().Barrier(rank)) return absl::InternalError("aborted");
    }
    return absl::OkStatus();
  };
  EXPECT_TRUE(ranks.Run(body).ok());
  EXPECT_TRUE(ranks.Run(body).ok());
  EXPECT_EQ(wrong, 0);
  for (int rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(ranks.group().arrivals(rank), 4 * kRounds);
  }
}

TEST(RankThreadsTest, ARankThatFailsEndsTheOthersWaits) {
  RankThreads ranks(3, seconds(60));
  const absl::Status status = ranks.Run([&](int rank) {
    if (rank == 1) return absl::InternalError("no memory");
    EXPECT_FALSE(ranks.group().Barrier(rank));
    EXPECT_FALSE(ranks.group().Barrier(rank)) << "from then on";
    return absl::OkStatus();
  });
  EXPECT_EQ(status, absl::UnavailableError("rank 1 of 3 failed: no memory"));
  EXPECT_TRUE(ranks.WaitIdle(seconds(0)));
  // No rank runs again.
  EXPECT_EQ(ranks.Run([](int) -> absl::Status {
    ADD_FAILURE();
    return absl::OkStatus();
  }),
            status);
}

TEST(RankThreadsTest, ARankThatDoesNotArriveIsNamedWhenTheTimeIsOver) {
  RankThreads ranks(3, seconds(1));
  std::atomic<bool> go = false;
  std::atomic<int> released = 0;
  const absl::Status status = ranks.Run([&](int rank) {
    if (rank == 2) go.wait(false);
    released += !ranks.group().Barrier(rank);
    return absl::OkStatus();
  });
  EXPECT_EQ(status, absl::UnavailableError("rank 2 of 3 got no further for 1 s (--step-timeout)"));
  EXPECT_FALSE(ranks.WaitIdle(seconds(0))) << "rank 2 still runs";
  go = true;
  go.notify_all();
  EXPECT_TRUE(ranks.WaitIdle(seconds(60)));
  EXPECT_EQ(released, 3) << "when it arrives, it waits for nobody";
}

TEST(RankThreadsTest, RanksThatAllStandStillAreAllNamed) {
  RankThreads ranks(2, milliseconds(50));
  std::atomic<bool> go = false;
  const absl::Status status = ranks.Run([&](int) {
    go.wait(false);
    return absl::OkStatus();
  });
  EXPECT_THAT(Message(status), HasSubstr("ranks 0, 1 of 2 got no further"));
  go = true;
  go.notify_all();
  EXPECT_TRUE(ranks.WaitIdle(seconds(60)));
}

// The limit is on standing still, not on a step.
TEST(RankThreadsTest, ALongStepThatGetsFurtherIsFine) {
  RankThreads ranks(2, seconds(2));
  EXPECT_TRUE(ranks
                  .Run([&](int rank) {
                    for (int i = 0; i < 23; ++i) {
                      if (rank == 0) std::this_thread::sleep_for(milliseconds(100));
                      if (!ranks.group().Barrier(rank)) return absl::InternalError("aborted");
                    }
                    return absl::OkStatus();
                  })
                  .ok());
}

TEST(RankThreadsTest, TheFirstAbortStays) {
  RankGroup group(2);
  EXPECT_TRUE(group.status().ok());
  group.Abort(absl::UnavailableError("first"));
  group.Abort(absl::UnavailableError("second"));
  EXPECT_EQ(group.status(), absl::UnavailableError("first"));
  EXPECT_FALSE(group.Barrier(0));
}

}  // namespace
}  // namespace millrace
