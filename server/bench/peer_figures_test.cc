#include "server/bench/peer_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using testing::HasSubstr;

TEST(PeerFiguresTest, AnEarlierRunIsRead) {
  const auto peer = PeerFigures::Parse(R"({"version": "1", "points": [
      {"batch": 4, "input": 128, "output_tokens_per_s": 900.5, "prompt_tokens_per_s": null},
      {"batch": 1, "input": 512, "output_tokens_per_s": null, "prompt_tokens_per_s": 2000}]})");
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->Find({4, 128, {16, 144}}, true), 900.5);
  EXPECT_EQ(peer->Find({4, 128, {1}}, false), std::nullopt);
  EXPECT_EQ(peer->Find({1, 512, {1}}, false), 2000);
  EXPECT_EQ(peer->Find({8, 128, {16, 144}}, true), std::nullopt);
}

TEST(PeerFiguresTest, LlamaBenchIsRead) {
  const auto peer = PeerFigures::Parse(R"([
      {"n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 1700.0},
      {"n_prompt": 0, "n_gen": 128, "n_depth": 128, "avg_ts": 300.0},
      {"n_prompt": 64, "n_gen": 64, "avg_ts": 1.0}])");
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->Find({1, 512, {1}}, false), 1700);
  EXPECT_EQ(peer->Find({1, 128, {16, 144}}, true), 300);
  EXPECT_EQ(peer->Find({1, 64, {16, 144}}, true), std::nullopt);
}

TEST(PeerFiguresTest, WhatIsNeitherIsRefused) {
  for (const char* const text :
       {"", "{", "[]", "{}", R"({"points": 3})", R"([1])", R"([{"n_prompt": "a"}])",
        R"({"points": [{"batch": 1e99, "input": 1}]})"}) {
    EXPECT_THAT(PeerFigures::Parse(text).status().message(), HasSubstr("peer: the file has no"))
        << text;
  }
  EXPECT_EQ(PeerFigures::Read("/nowhere.json").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace millrace
