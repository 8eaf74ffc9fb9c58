#include "server/text_pool.h"

#include <atomic>
#include <future>
#include <optional>
#include <vector>

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
      EXPECT_TRUE(pool.Submit(i % 7 == 0 ? kLong : 1, [&] { ++done; }));
    }
  }
  EXPECT_EQ(done, 1000);
}

TEST(TextPoolTest, AShortJobPassesARowOfLongOnes) {
  Gate gate;
  std::atomic<bool> second_long_ran = false;
  std::promise<void> ran;
  TextPool pool(2, 10);  // ends first: its threads use what stands above
  pool.Submit(kLong, gate.Work());
  gate.WaitEntered();
  pool.Submit(kLong, [&] { second_long_ran = true; });
  pool.Submit(kLong - 1, [&] { ran.set_value(); });
  ran.get_future().wait();  // hangs if a long job holds the second thread
  EXPECT_FALSE(second_long_ran);
  gate.Open();
}

TEST(TextPoolTest, RefusesWhenFull) {
  std::atomic<int> done = 0;
  Gate first, second;
  {
    TextPool pool(2, 2);
    pool.Submit(1, first.Work());
    pool.Submit(1, second.Work());
    first.WaitEntered();
    second.WaitEntered();
    EXPECT_TRUE(pool.Submit(1, [&] { ++done; }));
    EXPECT_TRUE(pool.Submit(kLong, [&] { ++done; }));
    EXPECT_FALSE(pool.Submit(1, [&] { ++done; }));
    EXPECT_FALSE(pool.Submit(kLong, [&] { ++done; }));
    first.Open();
    second.Open();
  }
  EXPECT_EQ(done, 2);
}

}  // namespace
}  // namespace millrace
