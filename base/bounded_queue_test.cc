#include "base/bounded_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

namespace millrace {
namespace {

using testing::ElementsAre;

TEST(BoundedQueueTest, FirstInFirstOut) {
  BoundedQueue<int> queue(3);
  for (const int i : {1, 2, 3}) EXPECT_EQ(queue.TryPush(int{i}), PushResult::kPushed);
  for (const int i : {1, 2, 3}) EXPECT_EQ(queue.Pop(), i);
}

TEST(BoundedQueueTest, AFullQueueSaysNoAndLeavesTheItem) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_EQ(queue.TryPush(std::make_unique<int>(1)), PushResult::kPushed);
  auto second = std::make_unique<int>(2);
  EXPECT_EQ(queue.TryPush(std::move(second)), PushResult::kFull);
  ASSERT_NE(second, nullptr);
  queue.Pop();
  EXPECT_EQ(queue.TryPush(std::move(second)), PushResult::kPushed);
  EXPECT_EQ(second, nullptr);
  EXPECT_EQ(queue.size(), 1u);
}

TEST(BoundedQueueTest, TakeAllMakesRoom) {
  BoundedQueue<int> queue(2);
  queue.TryPush(1);
  queue.TryPush(2);
  EXPECT_THAT(queue.TakeAll(), ElementsAre(1, 2));
  EXPECT_EQ(queue.size(), 0u);
  EXPECT_EQ(queue.TryPush(3), PushResult::kPushed);
}

TEST(BoundedQueueTest, CloseLetsOutWhatIsInside) {
  BoundedQueue<int> queue(2);
  queue.TryPush(1);
  queue.Close();
  EXPECT_EQ(queue.TryPush(2), PushResult::kClosed);
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(BoundedQueueTest, CloseEndsEveryWait) {
  BoundedQueue<int> queue(2);
  std::array<std::thread, 3> waiting;
  for (std::thread& thread : waiting) {
    thread = std::thread([&] { EXPECT_EQ(queue.Pop(), std::nullopt); });
  }
  queue.Close();
  for (std::thread& thread : waiting) thread.join();
}

// Each item arrives once and in its producer's order, with never more than `capacity` queued.
TEST(BoundedQueueTest, ManyProducersAndConsumers) {
  constexpr int kProducers = 3;
  constexpr int kEach = 3000;
  BoundedQueue<std::pair<int, int>> queue(16);
  std::vector<std::thread> producers;
  producers.reserve(kProducers);
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&queue, p] {
      for (int n = 0; n < kEach; ++n) {
        while (queue.TryPush({p, n}) == PushResult::kFull) std::this_thread::yield();
      }
    });
  }
  std::vector<std::vector<std::pair<int, int>>> got(2);
  std::vector<std::thread> consumers;
  consumers.reserve(got.size());
  for (auto& mine : got) {
    consumers.emplace_back([&queue, &mine] {
      while (auto item = queue.Pop()) {
        EXPECT_LE(queue.size(), queue.capacity());
        mine.push_back(*item);
      }
    });
  }
  for (std::thread& thread : producers) thread.join();
  queue.Close();
  for (std::thread& thread : consumers) thread.join();

  std::vector<int> sum(kProducers);
  for (const auto& mine : got) {
    std::vector<int> last(kProducers, -1);
    for (const auto& [producer, n] : mine) {
      EXPECT_GT(n, last[producer]);
      last[producer] = n;
      sum[producer] += n;
    }
  }
  EXPECT_EQ(got[0].size() + got[1].size(), size_t{kProducers} * kEach);
  EXPECT_THAT(sum, testing::Each(kEach * (kEach - 1) / 2));
}

}  // namespace
}  // namespace millrace
