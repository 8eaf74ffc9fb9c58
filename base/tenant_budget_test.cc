#include "base/tenant_budget.h"

#include <gtest/gtest.h>

#include <list>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace millrace {
namespace {

constexpr size_t kMb = 1 << 20;

class TenantBudgetTest : public testing::Test {
 protected:
  TenantBudget::Share& Make(const char* tenant) { return shares_.emplace_back(budget_, tenant); }

  TenantBudget budget_{"the messages", 128 * kMb};
  std::list<TenantBudget::Share> shares_;
};

TEST_F(TenantBudgetTest, ATenantHasHalfOfWhatTheOthersLeave) {
  TenantBudget::Share& first = Make("a");
  TenantBudget::Share& second = Make("a");
  EXPECT_TRUE(first.Take(40 * kMb).ok());
  EXPECT_TRUE(second.Take(24 * kMb).ok());
  const absl::Status full = second.Take(1);
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_EQ(full.message(),
            "the messages of this client take 67108864 bytes of memory, and this one takes 1 more; "
            "allowed beside those of others: 67108864");
  EXPECT_TRUE(Make("b").Take(30 * kMb).ok());
  EXPECT_TRUE(Make("b").Take(2 * kMb).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Make("b").Take(1)));
  // Even then there is something for the next.
  EXPECT_TRUE(Make("c").Take(16 * kMb).ok());
  EXPECT_EQ(budget_.used(), 112 * kMb);
}

TEST_F(TenantBudgetTest, CallsWithoutATenantHaveWhatTenantsLeave) {
  EXPECT_TRUE(Make("").Take(64 * kMb).ok());
  EXPECT_TRUE(Make("").Take(32 * kMb).ok());
  EXPECT_TRUE(Make("a").Take(32 * kMb).ok());
  const absl::Status full = Make("").Take(1);
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_NE(full.message().find("allowed beside those of others: 100663296"), std::string::npos);
  EXPECT_TRUE(absl::IsResourceExhausted(Make("b").Take(1)));
}

TEST(SmallSharesTest, AreTakenBesideALargeOneOfTheirTenant) {
  constexpr size_t kSmall = 64 << 10;
  TenantBudget budget("the messages", 128 * kMb, kSmall);
  std::list<TenantBudget::Share> shares;
  TenantBudget::Share& large = shares.emplace_back(budget, "a");
  EXPECT_TRUE(large.Take(96 * kMb).ok());
  TenantBudget::Share& small = shares.emplace_back(budget, "a");
  EXPECT_TRUE(small.Take(10).ok());
  EXPECT_TRUE(small.Take(kSmall - 10).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(small.Take(1)));
  EXPECT_TRUE(absl::IsResourceExhausted(small.Take(SIZE_MAX)));
  // However many there are, they leave an eighth to others.
  size_t taken = budget.used();
  while (shares.emplace_back(budget, "a").Take(kSmall).ok()) taken += kSmall;
  EXPECT_EQ(taken, 112 * kMb);
  EXPECT_EQ(budget.used(), taken);
  EXPECT_TRUE(shares.emplace_back(budget, "b").Take(16 * kMb).ok());
}

TEST_F(TenantBudgetTest, AMessageAloneMayHaveAll) {
  TenantBudget::Share& large = Make("a");
  EXPECT_TRUE(large.Take(100 * kMb).ok());
  EXPECT_TRUE(large.Take(28 * kMb).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(large.Take(1)));
  EXPECT_EQ(large.bytes(), 128 * kMb);
  EXPECT_TRUE(absl::IsResourceExhausted(Make("a").Take(1)));
  large.Give(64 * kMb);
  // Another tenant's has all that is left.
  EXPECT_TRUE(Make("b").Take(64 * kMb).ok());
}

TEST_F(TenantBudgetTest, AShareGoesBackAtItsEnd) {
  {
    std::optional<TenantBudget::Share> share;
    share.emplace(budget_, "a");
    EXPECT_TRUE(share->Take(50 * kMb).ok());
    share->Give(10 * kMb);
    EXPECT_EQ(budget_.used(), 40 * kMb);
  }
  EXPECT_EQ(budget_.used(), 0u);
  TenantBudget::Share& next = Make("a");
  EXPECT_TRUE(next.Take(128 * kMb).ok());
  next.GiveAll();
  next.GiveAll();
  EXPECT_EQ(budget_.used(), 0u);
  EXPECT_TRUE(Make("a").Take(128 * kMb).ok());
}

TEST_F(TenantBudgetTest, NothingIsTakenWhereTooMuchIsAsked) {
  TenantBudget::Share& share = Make("a");
  EXPECT_TRUE(absl::IsResourceExhausted(share.Take(129 * kMb)));
  EXPECT_TRUE(absl::IsResourceExhausted(share.Take(SIZE_MAX)));
  EXPECT_EQ(share.bytes(), 0u);
  EXPECT_EQ(budget_.used(), 0u);
}

TEST_F(TenantBudgetTest, ManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 1000; ++i) {
        TenantBudget::Share share(budget_, t % 2 == 0 ? "a" : "b");
        share.Take(12 * kMb).IgnoreError();
        share.Take(30 * kMb).IgnoreError();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget_.used(), 0u);
}

}  // namespace
}  // namespace millrace
