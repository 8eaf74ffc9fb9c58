#include "nodes/exchange.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::nodes {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

// The next free pair of ports is the caller's to look for: this port may be another's.
std::pair<Socket, int> ListenSomewhere() {
  for (int port = 21000; port < 30000; ++port) {
    absl::StatusOr<Socket> listener = Listen("127.0.0.1", port);
    if (listener.ok()) return {*std::move(listener), port};
  }
  ADD_FAILURE() << "no free port";
  return {};
}

std::vector<char> Text(const std::string& text) { return {text.begin(), text.end()}; }

TEST(ExchangeTest, EveryNodeGetsTheBytesOfAllNodes) {
  constexpr int kNodes = 3;
  auto [listener, port] = ListenSomewhere();
  const Token token = MakeToken();
  Exchange leader(kNodes, 0);
  std::vector<std::thread> others;
  const auto gather = [](Exchange& exchange, int node) {
    std::vector<std::vector<char>> all;
    int to_blame = 0;
    for (const size_t size : {size_t{0}, size_t{1}, size_t{5'000'000}}) {
      const std::vector<char> mine(size + node, static_cast<char>('a' + node));
      EXPECT_TRUE(exchange.AllGather(mine, &all, &to_blame).ok());
      for (int of = 0; of < kNodes; ++of) {
        EXPECT_EQ(all[of], std::vector<char>(size + of, static_cast<char>('a' + of)));
      }
    }
  };
  for (int node = 1; node < kNodes; ++node) {
    others.emplace_back([&, node, port = port] {
      Exchange exchange(kNodes, node);
      EXPECT_TRUE(exchange.Open("127.0.0.1", port, token).ok());
      gather(exchange, node);
    });
  }
  leader.AcceptAll(
      listener, [&](int) { return token; }, [] { return false; });
  ASSERT_TRUE(leader.complete());
  gather(leader, 0);
  for (std::thread& other : others) other.join();
}

TEST(ExchangeTest, StrangersAreRefusedAndTheNodeStillComes) {
  auto [listener, port] = ListenSomewhere();
  const Token token = MakeToken();
  Exchange leader(2, 0);
  std::thread accepting([&, &listener = listener] {
    leader.AcceptAll(
        listener, [&](int node) { return node == 1 ? std::optional(token) : std::nullopt; },
        [] { return false; });
  });
  // Refused, they see the end of the connection.
  const auto refused = [](const Socket& socket) {
    char byte;
    return !ReceiveAll(socket, {&byte, 1}, 10s);
  };
  Socket garbage = *Connect("127.0.0.1", port, 5s);
  EXPECT_TRUE(
      SendAll(garbage, Text("GET / HTTP/1.1\r\nHost: somewhere-or-other.example.com\r\n\r\n")));
  EXPECT_TRUE(refused(garbage));
  Socket silent = *Connect("127.0.0.1", port, 5s);
  EXPECT_TRUE(refused(silent));
  Exchange wrong_token(2, 1);
  EXPECT_TRUE(wrong_token.Open("127.0.0.1", port, MakeToken()).ok());
  Exchange wrong_number(3, 2);
  EXPECT_TRUE(wrong_number.Open("127.0.0.1", port, token).ok());
  EXPECT_FALSE(leader.complete());
  Exchange node(2, 1);
  EXPECT_TRUE(node.Open("127.0.0.1", port, token).ok());
  accepting.join();
  EXPECT_TRUE(leader.complete());
}

TEST(ExchangeTest, SilentStrangersDoNotHoldUpANode) {
  auto [listener, port] = ListenSomewhere();
  std::vector<Socket> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(*Connect("127.0.0.1", port, 5s));
  const Token token = MakeToken();
  Exchange node(2, 1);
  EXPECT_TRUE(node.Open("127.0.0.1", port, token).ok());
  Exchange leader(2, 0);
  const SteadyTime begin = Clock::Real().Now();
  leader.AcceptAll(
      listener, [&](int) { return token; }, [] { return false; });
  EXPECT_TRUE(leader.complete());
  EXPECT_LT(Clock::Real().Now() - begin, 30s);  // one after the other they would take 80
}

TEST(ExchangeTest, ANodeOutOfStepOrGoneIsToBlame) {
  auto [listener, port] = ListenSomewhere();
  const Token token = MakeToken();
  Exchange leader(2, 0);
  auto node = std::make_unique<Exchange>(2, 1);
  std::thread opening([&, port = port] { EXPECT_TRUE(node->Open("127.0.0.1", port, token).ok()); });
  leader.AcceptAll(
      listener, [&](int) { return token; }, [] { return false; });
  opening.join();
  node.reset();
  std::vector<std::vector<char>> all;
  int to_blame = 0;
  const absl::Status status = leader.AllGather(Text("x"), &all, &to_blame);
  EXPECT_THAT(std::string(status.message()), HasSubstr("its data connection has ended"));
  EXPECT_EQ(to_blame, 1);
}

}  // namespace
}  // namespace millrace::nodes
