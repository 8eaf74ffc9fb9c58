#include "engine/text_pool.h"

#include <atomic>
#include <future>
#include <thread>
#include <utility>

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
      EXPECT_EQ(pool.Submit(i % 7 == 0 ? kLong : 1, [&] { ++done; }), absl::OkStatus());
    }
  }
  EXPECT_EQ(done, 1000);
}

TEST(TextPoolTest, AShortJobPassesARowOfLongOnes) {
  Gate gate;
  std::atomic<bool> second_long_ran = false;
  std::promise<void> ran;
  TextPool pool(2, 10);  // ends first: its threads use what stands above
  ASSERT_EQ(pool.Submit(kLong, gate.Work()), absl::OkStatus());
  gate.WaitEntered();
  ASSERT_EQ(pool.Submit(kLong, [&] { second_long_ran = true; }), absl::OkStatus());
  ASSERT_EQ(pool.Submit(kLong - 1, [&] { ran.set_value(); }), absl::OkStatus());
  ran.get_future().wait();  // hangs if a long job holds the second thread
  EXPECT_FALSE(second_long_ran);
  gate.Open();
}

// A pool whose threads are all held.
class BusyPool {
 public:
  explicit BusyPool(size_t capacity) : pool_(2, capacity) {
    for (Gate& gate : gates_) {
      EXPECT_EQ(pool_.Submit(1, gate.Work()), absl::OkStatus());
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
    EXPECT_EQ(pool->Submit(1, [&] { ++done; }), absl::OkStatus());
    EXPECT_EQ(pool->Submit(kLong, [&] { ++done; }), absl::OkStatus());
    for (const size_t bytes : {size_t{1}, kLong}) {
      const absl::Status refused = pool->Submit(bytes, [&] { ++done; });
      EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_EQ(refused.message(), "the queue is full: 2 texts wait; allowed: 2");
      EXPECT_TRUE(RetryAfter(refused).has_value());
    }
  }
  EXPECT_EQ(done, 2);
}

TEST(TextPoolTest, RefusesMoreTextThanMayWait) {
  constexpr size_t kMost = TextPool::kMaxWaitingBytes;
  std::atomic<int> done = 0;
  {
    BusyPool pool(100);
    // Even a text that is larger alone is taken if no other waits.
    EXPECT_EQ(pool->Submit(kMost + 1, [&] { ++done; }), absl::OkStatus());
    const absl::Status refused = pool->Submit(1, [&] { ++done; });
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(refused.message(),
              "the queue is full: texts of 268435457 bytes wait, and this one has 1; allowed: "
              "268435456");
    pool.Open();
    std::promise<void> taken;
    while (!pool->Submit(1, [&] { taken.set_value(); }).ok()) std::this_thread::yield();
    taken.get_future().wait();
  }
  EXPECT_EQ(done, 1);
  {
    BusyPool pool(100);
    EXPECT_EQ(pool->Submit(kMost - 1, [&] { ++done; }), absl::OkStatus());
    EXPECT_EQ(pool->Submit(1, [&] { ++done; }), absl::OkStatus());
    EXPECT_FALSE(pool->Submit(1, [&] { ++done; }).ok());
  }
  EXPECT_EQ(done, 3);
}

}  // namespace
}  // namespace millrace
