#include "server/guard/body_budget.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace millrace {
namespace {

class BodyBudgetTest : public testing::Test {
 protected:
  ManualClock clock_;
  BodyBudget budget_{1000};
};

TEST_F(BodyBudgetTest, ChargesWhatHasComeAndReleasesItAtTheEnd) {
  {
    BodyBudget::Body body(budget_);
    EXPECT_TRUE(body.Charge(400, clock_.Now()));
    EXPECT_TRUE(body.Charge(600, clock_.Now()));
    EXPECT_EQ(budget_.used(), 1000u);
  }
  EXPECT_EQ(budget_.used(), 0u);
}

TEST_F(BodyBudgetTest, TheSlowestGivesWay) {
  BodyBudget::Body stalled(budget_);
  BodyBudget::Body brisk(budget_);
  EXPECT_TRUE(stalled.Charge(500, clock_.Now()));
  clock_.Advance(std::chrono::seconds(20));
  EXPECT_TRUE(brisk.Charge(400, clock_.Now()));
  EXPECT_TRUE(brisk.Charge(400, clock_.Now()));
  EXPECT_TRUE(stalled.evicted());
  EXPECT_FALSE(brisk.evicted());
  EXPECT_EQ(budget_.used(), 800u);
  EXPECT_FALSE(stalled.Charge(1, clock_.Now()));  // it stays out
}

TEST_F(BodyBudgetTest, ANewcomerIsRefusedWhereAllOthersAreFaster) {
  BodyBudget::Body large(budget_);
  BodyBudget::Body small(budget_);
  EXPECT_TRUE(large.Charge(900, clock_.Now()));
  EXPECT_FALSE(small.Charge(200, clock_.Now()));
  EXPECT_EQ(budget_.used(), 900u);
}

TEST_F(BodyBudgetTest, ManyThreads) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      for (int round = 0; round < 500; ++round) {
        BodyBudget::Body body(budget_);
        for (int part = 0; part < 5; ++part) {
          if (!body.Charge(100, clock_.Now())) break;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget_.used(), 0u);
}

}  // namespace
}  // namespace millrace
