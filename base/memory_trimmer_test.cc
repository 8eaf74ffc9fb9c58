#include "base/memory_trimmer.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr size_t kMb = 1 << 20;

// A process of `bytes`, of which trimming gives back what is over `used`.
struct FakeProcess {
  std::atomic<size_t> bytes;
  std::atomic<size_t> used;
  int settles_after = 0;  // trims, in the midst of which `used` becomes `settled`
  size_t settled = 0;
  std::atomic<int> looks = 0;
  std::atomic<int> trims = 0;

  std::unique_ptr<MemoryTrimmer> Trimmed() {
    return std::make_unique<MemoryTrimmer>(
        [this] {
          ++looks;
          return bytes.load();
        },
        [this] {
          if (++trims == settles_after) used = settled;
          bytes = used.load();
        },
        10 * kMb, std::chrono::milliseconds(1));
  }
  // Returns when there have been so many trims, and no more come.
  void WaitTrims(int count) const {
    while (trims < count) std::this_thread::yield();
    WaitSeen();
    EXPECT_EQ(trims, count);
  }
  // Returns when the trimmer has seen what is now.
  void WaitSeen() const {
    for (const int before = looks; looks < before + 3;) std::this_thread::yield();
  }
};

TEST(MemoryTrimmerTest, TrimsAfterGrowthAndAfterAFall) {
  FakeProcess process{.bytes = 50 * kMb, .used = 50 * kMb};
  const auto trimmer = process.Trimmed();
  process.WaitSeen();
  EXPECT_EQ(process.trims, 0);
  process.bytes = 59 * kMb;
  process.WaitSeen();
  EXPECT_EQ(process.trims, 0);
  process.used = 90 * kMb;  // it is needed: asked in vain
  process.bytes = 90 * kMb;
  process.WaitTrims(MemoryTrimmer::kLastTrims);
  process.used = 50 * kMb;
  process.bytes = 70 * kMb;  // a part of it has gone back by itself
  process.WaitTrims(2 * MemoryTrimmer::kLastTrims + 1);
  EXPECT_EQ(process.bytes, 50 * kMb);
}

// A trim is repeated, since memory that is freed after one changes nothing that is seen.
TEST(MemoryTrimmerTest, TrimsAgainWhileThingsSettle) {
  FakeProcess process{.bytes = 50 * kMb, .used = 90 * kMb, .settles_after = 3, .settled = 50 * kMb};
  const auto trimmer = process.Trimmed();
  process.WaitSeen();
  process.bytes = 90 * kMb;
  while (process.trims < 3) std::this_thread::yield();
  while (process.bytes > 50 * kMb) std::this_thread::yield();
}

TEST(MemoryTrimmerTest, ASteadyProcessIsLeftAlone) {
  FakeProcess process{.bytes = 50 * kMb, .used = 10 * kMb};
  const auto trimmer = process.Trimmed();
  process.WaitSeen();
  for (int i = 0; i < 20; ++i) {
    process.bytes = (i % 2 == 0 ? 45 : 55) * kMb;
    process.WaitSeen();
  }
  EXPECT_EQ(process.trims, 0);
}

TEST(MemoryTrimmerTest, SeesTheProcessesOwnMemory) {
  const size_t before = MemoryTrimmer::ResidentBytes();
  const std::vector<char> touched(64 * kMb, 'x');
  EXPECT_GE(MemoryTrimmer::ResidentBytes(), before + 32 * kMb);
  EXPECT_EQ(touched.back(), 'x');
}

}  // namespace
}  // namespace millrace
