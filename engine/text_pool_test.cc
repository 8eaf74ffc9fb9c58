#include "engine/text_pool.h"

#include <atomic>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr size_t kLong = TextPool::kLongBytes;

// Holds a thread of the pool until told to go on.
class Gate {
 public:
  std::function<void()> Work() {
    return [this] {
      entered_.set_value();
      open_.get_future().wait();
    };
  }
  void WaitEntered() { entered_.get_future().wait(); }
  void Open() { open_.set_value(); }

 private:
  std::promise<void> entered_, open_;
};

TEST(TextPoolTest, RunsEverythingBeforeItEnds) {
  std::atomic<int> done = 0;
  {
    TextPool pool(3, 1000);
    for (size_t i = 0; i < 1000; ++i) {
      // The pool drains while we submit, so none is refused.
      EXPECT_EQ(pool.Submit(0, i % 7 == 0 ? kLong : 1, [&] { ++done; }), absl::OkStatus());
    }
  }
  EXPECT_EQ(done, 1000);
}

TEST(TextPoolTest, AShortJobPassesARowOfLongOnes) {
  Gate gate;
  std::atomic<bool> second_long_ran = false;
  std::promise<void> ran;
  TextPool pool(2, 10);  // ends first: its threads use what stands above
  ASSERT_EQ(pool.Submit(0, kLong, gate.Work()), absl::OkStatus());
  gate.WaitEntered();
  ASSERT_EQ(pool.Submit(0, kLong, [&] { second_long_ran = true; }), absl::OkStatus());
  ASSERT_EQ(pool.Submit(0, kLong - 1, [&] { ran.set_value(); }), absl::OkStatus());
  ran.get_future().wait();  // hangs if a long job holds the second thread
  EXPECT_FALSE(second_long_ran);
  gate.Open();
}

TEST(TextPoolTest, TenantsTakeTurnsAtLongJobs) {
  Gate gate;
  std::vector<uint32_t> order;  // written by long jobs, of which one runs at a time
  {
    TextPool pool(2, 10);
    ASSERT_EQ(pool.Submit(1, kLong, gate.Work()), absl::OkStatus());
    gate.WaitEntered();
    for (const uint32_t tenant : {1, 1, 1, 2, 2, 3}) {
      ASSERT_EQ(pool.Submit(tenant, kLong, [&order, tenant] { order.push_back(tenant); }),
                absl::OkStatus());
    }
    gate.Open();
  }
  EXPECT_EQ(order, (std::vector<uint32_t>{1, 2, 3, 1, 2, 1}));
}

// A pool whose threads are all held.
class BusyPool {
 public:
  explicit BusyPool(size_t capacity) : pool_(2, capacity) {
    for (Gate& gate : gates_) {
      EXPECT_EQ(pool_.Submit(0, 1, gate.Work()), absl::OkStatus());
      gate.WaitEntered();
    }
  }
  ~BusyPool() { Open(); }

  TextPool* operator->() { return &pool_; }

  void Open() {
    if (std::exchange(open_, true)) return;
    for (Gate& gate : gates_) gate.Open();
  }

 private:
  Gate gates_[2];
  bool open_ = false;
  TextPool pool_;
};

TEST(TextPoolTest, RefusesWhenFull) {
  std::atomic<int> done = 0;
  {
    BusyPool pool(2);
    EXPECT_EQ(pool->Submit(0, 1, [&] { ++done; }), absl::OkStatus());
    EXPECT_EQ(pool->Submit(0, kLong, [&] { ++done; }), absl::OkStatus());
    for (const size_t bytes : {size_t{1}, kLong}) {
      const absl::Status refused = pool->Submit(0, bytes, [&] { ++done; });
      EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_EQ(refused.message(), "the queue is full: 2 texts wait; allowed: 2");
      EXPECT_TRUE(RetryAfter(refused).has_value());
    }
  }
  EXPECT_EQ(done, 2);
}

TEST(TextPoolTest, WhatIsWithdrawnTakesNoPlaceAndDoesNotRun) {
  const auto is_over = [](SteadyTime) { return true; };
  std::vector<int> ran;
  {
    BusyPool pool(4);
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(pool->Submit(
                    1, kLong, [] { FAIL(); }, is_over),
                absl::OkStatus());
      EXPECT_EQ(pool->Submit(
                    1, 1, [] { FAIL(); }, is_over),
                absl::OkStatus());
      if (round == 0) {
        EXPECT_EQ(pool->Submit(2, kLong, [&] { ran.push_back(2); }), absl::OkStatus());
        EXPECT_EQ(pool->Submit(1, kLong, [&] { ran.push_back(1); }), absl::OkStatus());
      }
      EXPECT_FALSE(pool->Submit(3, 1, [] {}).ok());
      EXPECT_EQ(pool->Withdraw(SteadyTime()).size(), 2u);
    }
  }
  EXPECT_EQ(ran, (std::vector<int>{1, 2})) << "tenant 1 keeps its turn";
}

TEST(TextPoolTest, RefusesMoreTextThanMayWait) {
  constexpr size_t kMost = TextPool::kMaxWaitingBytes;
  std::atomic<int> done = 0;
  {
    BusyPool pool(100);
    // Even a text that is larger alone is taken if no other waits.
    EXPECT_EQ(pool->Submit(0, kMost + 1, [&] { ++done; }), absl::OkStatus());
    const absl::Status refused = pool->Submit(0, 1, [&] { ++done; });
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(refused.message(),
              "the queue is full: texts of 268435457 bytes wait, and this one has 1; allowed: "
              "268435456");
    pool.Open();
    std::promise<void> taken;
    while (!pool->Submit(0, 1, [&] { taken.set_value(); }).ok()) std::this_thread::yield();
    taken.get_future().wait();
  }
  EXPECT_EQ(done, 1);
  {
    BusyPool pool(100);
    EXPECT_EQ(pool->Submit(0, kMost - 1, [&] { ++done; }), absl::OkStatus());
    EXPECT_EQ(pool->Submit(0, 1, [&] { ++done; }), absl::OkStatus());
    EXPECT_FALSE(pool->Submit(0, 1, [&] { ++done; }).ok());
  }
  EXPECT_EQ(done, 3);
}

}  // namespace
}  // namespace millrace
