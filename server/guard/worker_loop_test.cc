#include "server/guard/worker_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <functional>
#include <thread>

namespace millrace {
namespace {

namespace net = boost::asio;

// Some are posted one by one, so that the thread is woken over and over and begins to look away,
// and then some at once, which it finds when it looks again.
TEST(WorkerLoopTest, RunsEveryHandlerOfABusyThread) {
  constexpr int kRounds = 100, kOneByOne = 10, kAtOnce = 10;
  net::io_context context(1);
  auto work = net::make_work_guard(context);
  std::atomic<int> ran = 0;
  std::thread thread([&context] { RunInBatches(context); });
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  int posted = 0;
  const auto post = [&] {
    net::post(context, [&ran] { ++ran; });
    ++posted;
  };
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kOneByOne; ++i) {
      post();
      while (ran < posted && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
      if (ran < posted) break;
    }
    for (int i = 0; i < kAtOnce; ++i) post();
  }
  work.reset();
  thread.join();  // with the last of them
  EXPECT_EQ(ran, kRounds * (kOneByOne + kAtOnce));
}

TEST(WorkerLoopTest, EndsWhenTheContextIsStoppedAmidWork) {
  net::io_context context(1);
  std::atomic<int> ran = 0;
  const std::function<void()> again = [&] {
    ++ran;
    net::post(context, again);
  };
  net::post(context, again);
  std::thread thread([&context] { RunInBatches(context); });
  while (ran < 100) std::this_thread::yield();
  context.stop();
  thread.join();
  EXPECT_TRUE(context.stopped());
}

}  // namespace
}  // namespace millrace
