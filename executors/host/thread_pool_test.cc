#include "executors/host/thread_pool.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(ThreadPoolTest, RunsEveryChunkOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (const int chunks : {0, 1, 2, 3, 7, 64, 1000, (1 << 20) + 3}) {
      // Written without atomics: each element by one thread, and read after the region by this one.
      std::vector<int> runs(chunks);
      pool.ParallelFor(chunks, [&](int chunk, int thread) {
        ASSERT_GE(thread, 0);
        ASSERT_LT(thread, threads);
        ++runs[chunk];
      });
      EXPECT_EQ(runs, std::vector<int>(chunks, 1)) << threads << " threads";
    }
  }
}

TEST(ThreadPoolTest, ManyShortRegionsInARow) {
  ThreadPool pool(3);
  int64_t sum = 0;
  std::vector<int> parts(8);
  for (int region = 0; region < 20000; ++region) {
    pool.ParallelFor(8, [&](int chunk, int) { parts[chunk] = region + chunk; });
    sum += std::accumulate(parts.begin(), parts.end(), int64_t{0});
  }
  EXPECT_EQ(sum, int64_t{8} * 19999 * 20000 / 2 + int64_t{28} * 20000);
}

// Waits until the process has no thread that runs but this one: those of pools have spun for long
// enough then, and sleep.
bool OtherThreadsSleep() {
  const auto is_awake = [](const std::filesystem::path& thread) {
    std::string line;
    std::getline(std::ifstream(thread / "stat"), line);
    return line.substr(line.rfind(')') + 1, 2) != " S";
  };
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (std::chrono::steady_clock::now() < give_up) {
    int awake = 0;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
      if (is_awake(thread.path())) ++awake;
    }
    if (awake == 1) return true;
    std::this_thread::yield();
  }
  return false;
}

TEST(ThreadPoolTest, RegionsFindThreadsThatSleep) {
  ThreadPool pool(2);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(OtherThreadsSleep());
    std::vector<int> runs(4);
    pool.ParallelFor(4, [&](int chunk, int) { ++runs[chunk]; });
    EXPECT_EQ(runs, std::vector<int>(4, 1));
  }
}

TEST(ThreadPoolTest, OthersTakeWhatASlowThreadHasLeft) {
  ThreadPool pool(2);
  for (int i = 0; i < 5; ++i) {
    // The thread with the first chunk is held in it until the other has run all remaining chunks.
    std::atomic<int> others{0};
    pool.ParallelFor(10, [&](int chunk, int) {
      if (chunk == 0) {
        while (others.load() < 9) std::this_thread::yield();
      } else {
        ++others;
      }
    });
    EXPECT_EQ(others.load(), 9);
  }
}

}  // namespace
}  // namespace millrace
