#include "base/fault_points.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

namespace millrace {
namespace {

FaultPoint first("test.first");
FaultPoint second("test.second");

class FaultPointTest : public testing::Test {
 protected:
  ~FaultPointTest() override { DisarmFaultPoints(); }
};

std::vector<bool> Passes(FaultPoint& point, int count) {
  std::vector<bool> fired(count);
  for (int i = 0; i < count; ++i) fired[i] = point.Fires();
  return fired;
}

TEST_F(FaultPointTest, IsQuietUntilArmed) { EXPECT_FALSE(first.Fires()); }

TEST_F(FaultPointTest, SkipsThenFiresThenIsQuiet) {
  first.Arm(/*times=*/2, /*skip=*/1);
  EXPECT_THAT(Passes(first, 5), testing::ElementsAre(false, true, true, false, false));
  EXPECT_FALSE(second.Fires());
}

TEST_F(FaultPointTest, DisarmEndsIt) {
  first.Arm(10);
  EXPECT_TRUE(first.Fires());
  first.Disarm();
  EXPECT_FALSE(first.Fires());
}

TEST_F(FaultPointTest, IsArmedByName) {
  ASSERT_TRUE(ArmFaultPoints("test.first=2@1, test.second").ok());
  EXPECT_THAT(Passes(first, 4), testing::ElementsAre(false, true, true, false));
  EXPECT_THAT(Passes(second, 2), testing::ElementsAre(true, false));
}

TEST_F(FaultPointTest, AnEmptySpecArmsNothing) {
  EXPECT_TRUE(ArmFaultPoints("").ok());
  EXPECT_FALSE(first.Fires());
}

TEST_F(FaultPointTest, RefusesWhatItDoesNotKnowAndArmsNothing) {
  const absl::Status unknown = ArmFaultPoints("test.first,test.third");
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()), testing::AllOf(testing::HasSubstr("\"test.third\""),
                                                             testing::HasSubstr("test.second")));
  for (const char* wrong :
       {"test.first=", "test.first=x", "test.first@", "test.first=-1", "test.first@1=2"}) {
    EXPECT_FALSE(ArmFaultPoints(wrong).ok()) << wrong;
  }
  EXPECT_FALSE(first.Fires());
}

TEST_F(FaultPointTest, FiresExactlyAsOftenAsAskedAcrossThreads) {
  first.Arm(100, 50);
  std::atomic<int> fired = 0;
  std::array<std::thread, 4> threads;
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      for (int n = 0; n < 500; ++n) fired += first.Fires();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fired, 100);
}

}  // namespace
}  // namespace millrace
