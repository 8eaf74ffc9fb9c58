#include "server/guard/output_budget.h"

#include <gtest/gtest.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <list>
#include <memory>
#include <thread>
#include <vector>

namespace millrace {
namespace {

using Scope = OutputBudget::Scope;

constexpr uint64_t kMb = 1 << 20;

class OutputBudgetTest : public testing::Test {
 protected:
  OutputBudget::Share& Make() {
    return shares_.emplace_back(budget_, [this] { ++told_; });
  }
  bool Charge(OutputBudget::Share& share, uint64_t bytes, const char* tenant = "",
              const void* buffer = nullptr) {
    return share.Charge({.tenant = tenant}, bytes, buffer, clock_.Now());
  }

  ManualClock clock_;
  OutputBudget budget_{64 * kMb};
  int told_ = 0;
  std::list<OutputBudget::Share> shares_;
};

TEST_F(OutputBudgetTest, CountsFromTheFirstByteToTheLast) {
  {
    OutputBudget::Share share(budget_, nullptr);
    EXPECT_TRUE(Charge(share, 1));
    EXPECT_EQ(budget_.used(), 1u);
    share.Release();
    EXPECT_EQ(budget_.used(), 0u);
    EXPECT_TRUE(Charge(share, 29 * kMb));
    EXPECT_EQ(budget_.waiting(), 1u);
  }
  EXPECT_EQ(budget_.used(), 0u);
  EXPECT_EQ(budget_.waiting(), 0u);
}

TEST_F(OutputBudgetTest, ALargeAnswerIsRefusedWhereTheOthersHaveOnlyBegun) {
  EXPECT_TRUE(Charge(Make(), 29 * kMb));
  EXPECT_TRUE(Charge(Make(), 29 * kMb));
  OutputBudget::Share& third = Make();
  EXPECT_FALSE(Charge(third, 29 * kMb));
  EXPECT_EQ(third.full(), Scope::kProcess);
  EXPECT_EQ(budget_.used(), 58 * kMb);
  EXPECT_EQ(told_, 0);
}

TEST_F(OutputBudgetTest, TheSlowThatHoldMostGiveWay) {
  OutputBudget::Share& read = Make();
  OutputBudget::Share& small = Make();
  OutputBudget::Share& large = Make();
  EXPECT_TRUE(Charge(read, 30 * kMb));
  EXPECT_TRUE(Charge(small, 2 * kMb));
  EXPECT_TRUE(Charge(large, 29 * kMb));
  clock_.Advance(std::chrono::seconds(3));
  read.NoteTaken(1 * kMb);
  OutputBudget::Share& next = Make();
  EXPECT_TRUE(Charge(next, 29 * kMb));
  EXPECT_TRUE(large.evicted());
  EXPECT_FALSE(read.evicted());
  EXPECT_FALSE(small.evicted());
  EXPECT_EQ(told_, 1);
  EXPECT_EQ(budget_.used(), 61 * kMb);
}

TEST_F(OutputBudgetTest, AByteNowAndThenIsNotReading) {
  OutputBudget::Share& trickle = Make();
  EXPECT_TRUE(Charge(trickle, 40 * kMb));
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(std::chrono::milliseconds(900));
    trickle.NoteTaken(1);
  }
  EXPECT_TRUE(Charge(Make(), 40 * kMb));
  EXPECT_TRUE(trickle.evicted());
}

TEST_F(OutputBudgetTest, AnAnswerOfWhichOnlyTheEndIsSeenHasTheTimeThatItTakes) {
  OutputBudget::Share& call = Make();
  EXPECT_TRUE(
      call.Charge({.connection = "1", .notes_taken = false}, 10 * kMb, nullptr, clock_.Now()));
  EXPECT_TRUE(Charge(Make(), 30 * kMb));
  clock_.Advance(std::chrono::seconds(160));  // 10 MiB at 64 KiB a second
  shares_.back().NoteTaken(30 * kMb);
  EXPECT_FALSE(Charge(Make(), 30 * kMb));
  EXPECT_FALSE(call.evicted());
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_TRUE(Charge(Make(), 30 * kMb));
  EXPECT_TRUE(call.evicted());
}

TEST_F(OutputBudgetTest, ASmallAnswerTakesThePlaceOfALargeOne) {
  OutputBudget::Share& large = Make();
  EXPECT_TRUE(Charge(large, 40 * kMb));
  EXPECT_TRUE(Charge(Make(), 24 * kMb));
  EXPECT_TRUE(Charge(Make(), 1000));
  EXPECT_TRUE(large.evicted());
}

TEST_F(OutputBudgetTest, AnAnswerOfAnySizeGoesAloneWithSmallOnesBesideIt) {
  OutputBudget::Share& huge = Make();
  EXPECT_TRUE(Charge(huge, 1000 * kMb));
  for (int i = 0; i < 16; ++i) EXPECT_TRUE(Charge(Make(), kMb));
  EXPECT_FALSE(huge.evicted());
  EXPECT_FALSE(Charge(Make(), 1000 * kMb));
}

TEST_F(OutputBudgetTest, ATenantHasAHalf) {
  EXPECT_TRUE(Charge(Make(), 20 * kMb, "a"));
  OutputBudget::Share& second = Make();
  EXPECT_FALSE(Charge(second, 20 * kMb, "a"));
  EXPECT_EQ(second.full(), Scope::kTenant);
  EXPECT_TRUE(Charge(Make(), 20 * kMb, "b"));
  EXPECT_TRUE(Charge(Make(), 20 * kMb));
  // The tenant's own slow answer gives way, and no other's.
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_TRUE(Charge(second, 13 * kMb, "a"));
  EXPECT_TRUE(shares_.front().evicted());
  EXPECT_EQ(told_, 1);
}

TEST_F(OutputBudgetTest, AConnectionHasAQuarter) {
  const auto charge = [&](OutputBudget::Share& share, const char* connection) {
    return share.Charge({.connection = connection}, 10 * kMb, nullptr, clock_.Now());
  };
  EXPECT_TRUE(charge(Make(), "1"));
  OutputBudget::Share& second = Make();
  EXPECT_FALSE(charge(second, "1"));
  EXPECT_EQ(second.full(), Scope::kConnection);
  EXPECT_TRUE(charge(second, "2"));
}

TEST_F(OutputBudgetTest, NobodyGivesWayToAnAnswerThatIsRefused) {
  // The tenant's slow answer would make room in its half, but not in the process's memory.
  OutputBudget::Share& slow = Make();
  EXPECT_TRUE(Charge(slow, 16 * kMb, "a"));
  clock_.Advance(std::chrono::seconds(2));
  OutputBudget::Share& other = Make();
  EXPECT_TRUE(Charge(other, 44 * kMb));
  OutputBudget::Share& next = Make();
  EXPECT_FALSE(Charge(next, 24 * kMb, "a"));
  EXPECT_EQ(next.full(), Scope::kProcess);
  EXPECT_FALSE(slow.evicted());
  EXPECT_EQ(told_, 0);
  EXPECT_EQ(budget_.used(), 60 * kMb);
  EXPECT_EQ(budget_.waiting(), 2u);
  other.Release();
  EXPECT_TRUE(Charge(next, 24 * kMb, "a"));
  EXPECT_TRUE(slow.evicted());
  EXPECT_EQ(told_, 1);
}

TEST_F(OutputBudgetTest, WhatIsSharedIsChargedOnce) {
  const int buffer = 0;
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(Charge(Make(), 29 * kMb, "a", &buffer));
  EXPECT_EQ(budget_.used(), 29 * kMb);
  EXPECT_EQ(budget_.waiting(), 40u);
  // All of them have to let go before another fits.
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_TRUE(Charge(Make(), 24 * kMb, "a"));
  EXPECT_EQ(told_, 40);
  EXPECT_EQ(budget_.used(), 24 * kMb);
  EXPECT_EQ(budget_.waiting(), 1u);
}

TEST_F(OutputBudgetTest, ShowsWhatItDoes) {
  prometheus::Registry registry;
  OutputBudget budget(64 * kMb, &registry);
  OutputBudget::Share first(budget, nullptr);
  OutputBudget::Share second(budget, nullptr);
  EXPECT_TRUE(first.Charge({.tenant = "a"}, 24 * kMb, nullptr, clock_.Now()));
  EXPECT_FALSE(second.Charge({.tenant = "a"}, 24 * kMb, nullptr, clock_.Now()));
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_TRUE(second.Charge({.tenant = "a"}, 9 * kMb, nullptr, clock_.Now()));
  const std::string text = prometheus::TextSerializer().Serialize(registry.Collect());
  for (const char* line : {"millrace_unread_answer_bytes 9437184\n", "millrace_unread_answers 1\n",
                           "millrace_unread_answers_refused_total{scope=\"tenant\"} 1\n",
                           "millrace_unread_answers_evicted_total{scope=\"tenant\"} 1\n",
                           "millrace_unread_answers_evicted_total{scope=\"process\"} 0\n"}) {
    EXPECT_NE(text.find(line), text.npos) << line << text;
  }
}

TEST_F(OutputBudgetTest, ManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 200; ++i) {
        OutputBudget::Share share(budget_, [] {});
        share.Charge({.tenant = std::string(1, static_cast<char>('a' + t % 2))}, 12 * kMb, nullptr,
                     clock_.Now());
        share.NoteTaken(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget_.used(), 0u);
}

}  // namespace
}  // namespace millrace
