#include "engine/mask_workers.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/request/tenant.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;

std::shared_ptr<const Tenant> MakeTenant(uint32_t id) {
  return std::make_shared<const Tenant>(id, TenantLimits(), std::make_shared<TenantUsage>());
}

class MaskTurnsTest : public testing::Test {
 protected:
  // Each thread stays where it has made its first mask, until GoOn.
  void Start(MaskWorkers::Threads threads) {
    workers_ = std::make_unique<MaskWorkers>([this] { OnMade(); }, /*least_forced=*/1, threads);
  }
  ~MaskTurnsTest() override { GoOn(); }

  // Orders the first mask of a request whose masks took `mask_time` before.
  void Order(uint64_t key, std::shared_ptr<const Tenant> tenant, Duration mask_time = {}) {
    auto request = std::make_shared<LiveRequest>(Clock::Real(), GenerateRequest(), [] {});
    request->request.tenant = std::move(tenant);
    request->key = key;
    request->mask_time = mask_time;
    request->token_bounds.emplace(std::vector<Token>{1, 2}, std::vector<std::vector<Token>>(), 64);
    workers_->Order(std::move(request), 1);
  }

  // Returns the keys of all masks, in the order in which they were made, once there are so many.
  std::vector<uint64_t> WaitMade(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return made_ == count; });
    for (const MaskWorkers::Made& made : workers_->TakeAll()) {
      EXPECT_TRUE(made.status.ok()) << made.status;
      EXPECT_NE(made.mask, nullptr);
      keys_.push_back(made.key);
    }
    return keys_;
  }

  void GoOn() {
    const std::lock_guard lock(mutex_);
    go_on_ = true;
    changed_.notify_all();
  }

  const std::shared_ptr<const Tenant> one_ = MakeTenant(1);
  const std::shared_ptr<const Tenant> two_ = MakeTenant(2);

 private:
  void OnMade() {
    std::unique_lock lock(mutex_);
    ++made_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return go_on_; });
  }

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  size_t made_ = 0;
  bool go_on_ = false;
  std::vector<uint64_t> keys_;
  std::unique_ptr<MaskWorkers> workers_;  // ends first
};

TEST_F(MaskTurnsTest, AFloodOfOneTenantDoesNotHoldUpAnother) {
  Start({.ordinary = 1, .spare = 0});
  Order(10, one_);
  EXPECT_EQ(WaitMade(1), (std::vector<uint64_t>{10}));
  for (uint64_t key = 11; key <= 15; ++key) Order(key, one_);
  Order(20, two_);
  Order(21, two_);
  GoOn();
  EXPECT_EQ(WaitMade(8), (std::vector<uint64_t>{10, 20, 11, 21, 12, 13, 14, 15}));
}

TEST_F(MaskTurnsTest, ATenantPaysForTheTimeOfItsMasks) {
  Start({.ordinary = 1, .spare = 0});
  Order(10, one_, 5ms);
  EXPECT_EQ(WaitMade(1), (std::vector<uint64_t>{10}));
  for (uint64_t key = 11; key <= 12; ++key) Order(key, one_, 5ms);
  for (uint64_t key = 20; key <= 24; ++key) Order(key, two_, 50us);
  GoOn();
  EXPECT_EQ(WaitMade(8), (std::vector<uint64_t>{10, 20, 21, 22, 23, 24, 11, 12}));
}

TEST_F(MaskTurnsTest, WhoHasNoMaskInTheMakingGetsASpareThread) {
  Start({.ordinary = 1, .spare = 1});
  Order(10, one_);
  EXPECT_EQ(WaitMade(1), (std::vector<uint64_t>{10}));
  Order(11, one_);
  Order(20, two_);
  EXPECT_EQ(WaitMade(2), (std::vector<uint64_t>{10, 20}));
  GoOn();
  EXPECT_EQ(WaitMade(3), (std::vector<uint64_t>{10, 20, 11}));
}

}  // namespace
}  // namespace millrace
