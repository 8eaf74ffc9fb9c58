#include "server/tls/hello_budget.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace millrace {
namespace {

using Hello = HelloBudget::Hello;

bool Keep(Hello& hello, std::string_view bytes) {
  return hello.Keep({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

std::string Kept(const Hello& hello) {
  std::string bytes(20'000, '\0');
  bytes.resize(hello.CopyTo({reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()}));
  return bytes;
}

TEST(HelloBudgetTest, KeepsAMessageThatComesByteByByte) {
  HelloBudget budget(4096);
  std::string text;
  {
    Hello hello(budget);
    EXPECT_EQ(Kept(hello), "");
    for (int i = 0; i < 3000; ++i) {
      text += static_cast<char>(i);
      ASSERT_TRUE(Keep(hello, text));
      EXPECT_GE(budget.used(), text.size());
      EXPECT_EQ(budget.used(), hello.memory());
    }
    EXPECT_EQ(Kept(hello), text);
    EXPECT_EQ(budget.used(), 4096u);
  }
  EXPECT_EQ(budget.used(), 0u);
}

TEST(HelloBudgetTest, TheOneThatHasHeldBytesForLongestGivesWay) {
  HelloBudget budget(2048);
  const std::string part(1024, 'a');
  Hello first(budget);
  Hello second(budget);
  Hello third(budget);
  EXPECT_TRUE(Keep(first, part.substr(0, 1)));
  EXPECT_TRUE(Keep(second, part));
  EXPECT_TRUE(Keep(first, part)) << "it holds more, and is as old as before";
  EXPECT_EQ(budget.used(), 2048u);
  EXPECT_TRUE(Keep(third, "b"));
  EXPECT_TRUE(first.gave_way());
  EXPECT_EQ(Kept(first), "");
  EXPECT_EQ(first.memory(), 0u) << "it is free at once";
  EXPECT_FALSE(Keep(first, part));
  EXPECT_FALSE(second.gave_way());
  EXPECT_EQ(Kept(second), part);
  EXPECT_EQ(Kept(third), "b");
  EXPECT_EQ(budget.used(), 1024u + 512u);
}

TEST(HelloBudgetTest, OneThatIsLargerThanAllGivesWayItself) {
  HelloBudget budget(2048);
  Hello one(budget);
  EXPECT_FALSE(Keep(one, std::string(2049, 'a')));
  EXPECT_TRUE(one.gave_way());
  EXPECT_EQ(budget.used(), 0u);
}

TEST(HelloBudgetTest, BytesInASocketCountTheSame) {
  HelloBudget budget(2048);
  Hello socket(budget);
  Hello own(budget);
  EXPECT_TRUE(socket.Charge(5));
  EXPECT_TRUE(socket.Charge(1500));
  EXPECT_EQ(budget.used(), 1500u);
  EXPECT_TRUE(Keep(own, "a"));
  EXPECT_EQ(budget.used(), 2012u);
  EXPECT_TRUE(Keep(own, std::string(600, 'a')));
  EXPECT_TRUE(socket.gave_way());
  EXPECT_FALSE(socket.Charge(1));
  EXPECT_EQ(budget.used(), 1024u);
}

// Several threads, each of which begins messages, goes on with them and drops them.
TEST(HelloBudgetTest, HoldsTheLimitWhenThreadsShareIt) {
  HelloBudget budget(64 << 10);
  const auto work = [&budget] {
    const std::string text(5000, 'x');
    for (int round = 0; round < 50; ++round) {
      std::vector<std::unique_ptr<Hello>> hellos;
      for (int i = 0; i < 30; ++i) {
        Hello& one = *hellos.emplace_back(std::make_unique<Hello>(budget));
        for (size_t size = 1; size <= text.size() && Keep(one, text.substr(0, size)); size += 999) {
        }
        EXPECT_LE(budget.used(), 64u << 10);
        const std::string kept = Kept(one);
        EXPECT_EQ(kept, text.substr(0, kept.size()));
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.used(), 0u);
}

}  // namespace
}  // namespace millrace
