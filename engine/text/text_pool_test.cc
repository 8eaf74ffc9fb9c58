#include "engine/text/text_pool.h"

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/request/request.h"
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
    TextPool pool(3, 2000);
    for (size_t i = 0; i < 1000; ++i) {
      // The pool drains while we submit, so none is refused.
      EXPECT_EQ(pool.Submit({0}, i % 7 == 0 ? kLong : 1, [&] { ++done; }), absl::OkStatus());
    }
  }
  EXPECT_EQ(done, 1000);
}

TEST(TextPoolTest, AShortJobPassesARowOfLongOnes) {
  Gate gate;
  std::atomic<bool> second_long_ran = false;
  std::promise<void> ran;
  TextPool pool(2, 10);  // ends first: its threads use what stands above
  ASSERT_EQ(pool.Submit({0}, kLong, gate.Work()), absl::OkStatus());
  gate.WaitEntered();
  ASSERT_EQ(pool.Submit({0}, kLong, [&] { second_long_ran = true; }), absl::OkStatus());
  ASSERT_EQ(pool.Submit({0}, kLong - 1, [&] { ran.set_value(); }), absl::OkStatus());
  ran.get_future().wait();  // hangs if a long job holds the second thread
  EXPECT_FALSE(second_long_ran);
  gate.Open();
}

TEST(TextPoolTest, ALongJobPassesARowOfShortOnes) {
  Gate gates[2];
  std::promise<void> ran;
  TextPool pool(2, 10, /*spare_threads=*/0);
  for (Gate& gate : gates) {
    ASSERT_EQ(pool.Submit({0}, 1, gate.Work()), absl::OkStatus());
    gate.WaitEntered();
  }
  ASSERT_EQ(pool.Submit({0}, 1, [] {}), absl::OkStatus());
  ASSERT_EQ(pool.Submit({0}, kLong, [&] { ran.set_value(); }), absl::OkStatus());
  ran.get_future().wait();
  for (Gate& gate : gates) gate.Open();
}

// Holds all threads of a pool of two short jobs and one long one at once that run jobs of `bytes`
// bytes, so that further jobs wait together.
void Hold(TextPool& pool, size_t bytes, std::vector<Gate>& gates) {
  gates = std::vector<Gate>(bytes < kLong ? 2 : 1);
  for (Gate& gate : gates) {
    EXPECT_EQ(pool.Submit({9}, bytes, gate.Work()), absl::OkStatus());
    gate.WaitEntered();
  }
}

// Runs jobs of some tenants, by number; all are of `bytes` bytes. One runs at a time. Returns the
// order in which they ran.
std::vector<uint32_t> OrderOf(const std::vector<TenantShare>& tenants, size_t bytes) {
  std::vector<Gate> gates;
  std::vector<uint32_t> order;
  {
    TextPool pool(2, 100, /*spare_threads=*/0);
    Hold(pool, bytes, gates);
    std::promise<void> last;
    for (const TenantShare tenant : tenants) {
      const auto work = [&, tenant] {
        order.push_back(tenant.id);
        if (order.size() == tenants.size()) last.set_value();
      };
      EXPECT_EQ(pool.Submit(tenant, bytes, work), absl::OkStatus());
    }
    gates.front().Open();
    last.get_future().wait();
    if (gates.size() > 1) gates.back().Open();
  }
  return order;
}

TEST(TextPoolTest, TenantsTakeTurns) {
  // The lane that was served least goes first; of equal ones the one that came first.
  for (const size_t bytes : {size_t{1}, kLong}) {
    EXPECT_EQ(OrderOf({{1}, {1}, {1}, {2}, {2}, {3}}, bytes),
              (std::vector<uint32_t>{1, 2, 3, 1, 2, 1}))
        << bytes;
  }
}

TEST(TextPoolTest, TenantsAreServedByTheirShares) {
  const TenantShare large = {.id = 1, .weight = 200};
  const TenantShare small = {.id = 2, .weight = 100};
  EXPECT_EQ(OrderOf({small, small, small, large, large, large, large}, kLong),
            (std::vector<uint32_t>{2, 1, 1, 2, 1, 1, 2}));
}

TEST(TextPoolTest, ARowOfLongTextsCountsByItsBytes) {
  std::vector<Gate> gates;
  std::vector<uint32_t> order;
  {
    TextPool pool(2, 100, /*spare_threads=*/0);
    Hold(pool, kLong, gates);
    std::promise<void> last;
    const auto submit = [&](uint32_t tenant, size_t bytes) {
      const auto work = [&, tenant] {
        order.push_back(tenant);
        if (order.size() == 6) last.set_value();
      };
      ASSERT_EQ(pool.Submit({tenant}, bytes, work), absl::OkStatus());
    };
    for (int i = 0; i < 2; ++i) submit(1, 100 * kLong);
    for (int i = 0; i < 4; ++i) submit(2, kLong);
    gates.front().Open();
    last.get_future().wait();
  }
  EXPECT_EQ(order, (std::vector<uint32_t>{1, 2, 2, 2, 2, 1}));
}

// One tenant's job runs all the while, and another's ran one after the other beside it: neither the
// first one nor a newcomer may make that one wait for as much.
TEST(TextPoolTest, WhatATenantHadAloneIsNoDebt) {
  Gate gates[2];
  std::vector<uint32_t> order;
  {
    TextPool pool(2, 100, /*spare_threads=*/0);
    ASSERT_EQ(pool.Submit({3}, 1, gates[0].Work()), absl::OkStatus());
    gates[0].WaitEntered();
    for (int i = 0; i < 10; ++i) {
      std::promise<void> ran;
      ASSERT_EQ(pool.Submit({1}, 1, [&ran] { ran.set_value(); }), absl::OkStatus());
      ran.get_future().wait();
    }
    ASSERT_EQ(pool.Submit({1}, 1, gates[1].Work()), absl::OkStatus());
    gates[1].WaitEntered();
    std::promise<void> last;
    for (const uint32_t tenant : {1, 1, 1, 2, 2, 2, 3, 3, 3}) {
      const auto work = [&, tenant] {
        order.push_back(tenant);
        if (order.size() == 9) last.set_value();
      };
      ASSERT_EQ(pool.Submit({tenant}, 1, work), absl::OkStatus());
    }
    gates[1].Open();
    last.get_future().wait();
    gates[0].Open();
  }
  EXPECT_EQ(order, (std::vector<uint32_t>{2, 3, 1, 2, 3, 1, 2, 3, 1}));
}

TEST(TextPoolTest, ATenantWithNothingRunningGetsAThreadWhateverOthersDo) {
  Gate gates[4];
  std::atomic<bool> second_ran = false;
  TextPool pool(2, 100, /*spare_threads=*/2);
  // One tenant has all threads, and more that waits.
  ASSERT_EQ(pool.Submit({1}, kLong, gates[0].Work()), absl::OkStatus());
  gates[0].WaitEntered();
  ASSERT_EQ(pool.Submit({1}, 1, gates[1].Work()), absl::OkStatus());
  gates[1].WaitEntered();
  ASSERT_EQ(pool.Submit({1}, 1, gates[3].Work()), absl::OkStatus());
  gates[3].WaitEntered();
  ASSERT_EQ(pool.Submit({1}, 1, [] {}), absl::OkStatus());
  // Another one's long job runs at once, and only its first.
  ASSERT_EQ(pool.Submit({2}, kLong, gates[2].Work()), absl::OkStatus());
  gates[2].WaitEntered();
  ASSERT_EQ(pool.Submit({2}, kLong, [&] { second_ran = true; }), absl::OkStatus());
  std::promise<void> ran;
  ASSERT_EQ(pool.Submit({3}, kLong, [&] { ran.set_value(); }), absl::OkStatus());
  ran.get_future().wait();
  EXPECT_FALSE(second_ran);
  for (Gate& gate : gates) gate.Open();
}

// A pool whose threads are all held.
class BusyPool {
 public:
  explicit BusyPool(size_t capacity) : pool_(2, capacity, /*spare_threads=*/0) {
    for (const size_t bytes : {size_t{1}, size_t{1}, kLong}) {
      EXPECT_EQ(pool_.Submit({0}, bytes, gates_[held_].Work()), absl::OkStatus());
      gates_[held_++].WaitEntered();
    }
  }
  ~BusyPool() { Open(); }

  TextPool* operator->() { return &pool_; }

  void Open() {
    if (std::exchange(open_, true)) return;
    for (Gate& gate : gates_) gate.Open();
  }

 private:
  Gate gates_[3];
  size_t held_ = 0;
  bool open_ = false;
  TextPool pool_;
};

TEST(TextPoolTest, NoTenantFillsThePoolForOthers) {
  std::atomic<int> done = 0;
  {
    BusyPool pool(8);
    const auto fill = [&](uint32_t tenant, const std::string& full) {
      int taken = 0;
      absl::Status refused;
      while (refused.ok()) {
        refused = pool->Submit({tenant}, taken % 2 == 0 ? 1 : kLong, [&] { ++done; });
        taken += refused.ok() ? 1 : 0;
      }
      EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_EQ(std::string(refused.message()), full);
      EXPECT_TRUE(RetryAfter(refused).has_value());
      return taken;
    };
    EXPECT_EQ(fill(1, "the queue is full: 4 texts wait; allowed beside 0 of others: 4"), 4);
    EXPECT_EQ(fill(2, "the queue is full: 2 texts wait; allowed beside 4 of others: 2"), 2);
    EXPECT_EQ(fill(3, "the queue is full: 1 texts wait; allowed beside 6 of others: 1"), 1);
    EXPECT_EQ(fill(0, "the queue is full: 1 texts wait; allowed beside 7 of others: 1"), 1);
  }
  EXPECT_EQ(done, 8);
}

TEST(TextPoolTest, WhatIsWithdrawnTakesNoPlaceAndDoesNotRun) {
  const auto is_over = [](SteadyTime) { return true; };
  const auto fails = [] { FAIL(); };
  std::vector<int> ran;
  {
    BusyPool pool(6);
    EXPECT_EQ(pool->Submit({1}, kLong, [&] { ran.push_back(1); }), absl::OkStatus());
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(pool->Submit({1}, kLong, fails, is_over), absl::OkStatus());
      EXPECT_EQ(pool->Submit({1}, 1, fails, is_over), absl::OkStatus());
      EXPECT_FALSE(pool->Submit({1}, 1, fails).ok());
      EXPECT_EQ(pool->Withdraw(SteadyTime()).size(), 2u);
    }
    EXPECT_EQ(pool->Submit({2}, kLong, [&] { ran.push_back(2); }), absl::OkStatus());
  }
  EXPECT_EQ(ran, (std::vector<int>{1, 2}));
}

TEST(TextPoolTest, OneTenantAloneHasRoomFor256MiB) {
  BusyPool pool(100);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(pool->Submit({0}, 32 << 20, [] {}), absl::OkStatus());
  EXPECT_FALSE(pool->Submit({0}, 1, [] {}).ok());
}

TEST(TextPoolTest, NoTenantsTextsLeaveOthersNoRoom) {
  constexpr size_t kMost = TextPool::kMaxWaitingBytes;
  std::atomic<int> done = 0;
  {
    BusyPool pool(100);
    // Even a text that is larger alone is taken if no other waits.
    EXPECT_EQ(pool->Submit({1}, kMost + 1, [&] { ++done; }), absl::OkStatus());
    const absl::Status refused = pool->Submit({2}, 1, [&] { ++done; });
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(refused.message(),
              "the queue is full: texts of 0 bytes wait, and this one has 1; allowed beside "
              "536870913 of others: 0");
    pool.Open();
    std::promise<void> taken;
    while (!pool->Submit({2}, 1, [&] { taken.set_value(); }).ok()) std::this_thread::yield();
    taken.get_future().wait();
  }
  EXPECT_EQ(done, 1);
  {
    BusyPool pool(100);
    EXPECT_EQ(pool->Submit({1}, kMost / 4, [&] { ++done; }), absl::OkStatus());
    EXPECT_EQ(pool->Submit({1}, kMost / 4, [&] { ++done; }), absl::OkStatus());
    EXPECT_FALSE(pool->Submit({1}, 1, [&] { ++done; }).ok());
    // The first text of a tenant may have all that is left.
    EXPECT_EQ(pool->Submit({2}, kMost / 2, [&] { ++done; }), absl::OkStatus());
    EXPECT_FALSE(pool->Submit({2}, 1, [&] { ++done; }).ok());
  }
  EXPECT_EQ(done, 4);
}

}  // namespace
}  // namespace millrace
