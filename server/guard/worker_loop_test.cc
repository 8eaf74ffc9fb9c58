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

// Posted one by one, so that the thread is woken over and over and begins to look away.
TEST(WorkerLoopTest, RunsEveryHandlerOfABusyThread) {
  constexpr int kHandlers = 2000;
  net::io_context context(1);
  auto work = net::make_work_guard(context);
  std::atomic<int> ran = 0;
  std::thread thread([&context] { RunInBatches(context); });
  for (int i = 0; i < kHandlers; ++i) {
    net::post(context, [&ran] { ++ran; });
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  work.reset();
  thread.join();  // with the last of them
  EXPECT_EQ(ran, kHandlers);
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
