// Tests which sizes steps are padded to and which of these have graphs, without a GPU.
// cuda_mixed_graphs_test.cc tests the steps.
#include "executors/cuda/mixed_graphs.h"

#include <vector>

#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

StepLimits Limits(int seqs, int tokens) {
  StepLimits limits{};
  limits.max_num_seqs = seqs;
  limits.max_num_batched_tokens = tokens;
  return limits;
}

CudaStepInput Size(int tokens, int wanted) {
  CudaStepInput size;
  size.rows = 1;
  size.tokens = tokens;
  size.wanted = wanted;
  return size;
}

TEST(MixedGraphsTest, TokensArePaddedToBoundsOfThePlansAndLogitsToPowersOfTwo) {
  const StepLimits limits = Limits(40, 2048);
  const struct {
    int tokens, wanted, padded_tokens, padded_wanted;
  } cases[] = {{2, 0, 8, 0},        {8, 1, 8, 1},      {9, 2, 16, 2},      {33, 3, 48, 4},
               {64, 9, 64, 16},     {65, 17, 96, 32},  {130, 33, 160, 40}, {513, 40, 576, 40},
               {897, 40, 1024, 40}, {1024, 1, 1024, 1}};
  for (const auto& c : cases) {
    const auto padded = PaddedSize(Size(c.tokens, c.wanted), limits, 1024);
    ASSERT_TRUE(padded.has_value()) << c.tokens;
    EXPECT_EQ(padded->tokens, c.padded_tokens) << c.tokens;
    EXPECT_EQ(padded->wanted, c.padded_wanted) << c.wanted;
    EXPECT_EQ(padded->rows, 40 + kMaxPaddingRows);
    EXPECT_EQ(padded->max_row_tokens, padded->tokens);
  }
}

TEST(MixedGraphsTest, EveryStepFitsItsPaddedSize) {
  for (const int budget : {16, 100, 1000, 2048}) {
    const StepLimits limits = Limits(16, budget);
    for (int tokens = 1; tokens <= budget; ++tokens) {
      for (const int wanted : {0, 1, 5, 16}) {
        const auto padded = PaddedSize(Size(tokens, wanted), limits, 1024);
        ASSERT_EQ(padded.has_value(), tokens <= 1024);
        if (!padded.has_value()) continue;
        EXPECT_GE(padded->tokens, tokens);
        EXPECT_LE(padded->tokens, budget);
        EXPECT_LE(padded->tokens - tokens, kMaxPaddingRows);
        EXPECT_GE(padded->wanted, wanted);
        EXPECT_LE(padded->wanted, limits.max_num_seqs);
        EXPECT_EQ(padded->wanted == 0, wanted == 0);  // a head is not computed for padding alone
      }
    }
  }
}

TEST(MixedGraphsTest, LongStepsAndStepsWithManyLogitsRunAsTheyAre) {
  const StepLimits limits = Limits(16, 8192);
  EXPECT_FALSE(PaddedSize(Size(0, 0), limits, 1024).has_value());
  EXPECT_FALSE(PaddedSize(Size(1025, 1), limits, 1024).has_value());
  EXPECT_FALSE(PaddedSize(Size(1025, 1), limits, 8192).has_value());
  EXPECT_FALSE(PaddedSize(Size(129, 1), limits, 128).has_value());
  EXPECT_FALSE(PaddedSize(Size(1, 1), limits, 0).has_value());
  EXPECT_FALSE(PaddedSize(Size(100, 17), limits, 1024).has_value());  // scores a prompt
}

TEST(MixedGraphsTest, ASizeIsCapturedAtItsSecondStep) {
  MixedGraphs graphs;
  EXPECT_FALSE(graphs.Count(Size(64, 1)));
  EXPECT_FALSE(graphs.Count(Size(64, 2)));
  EXPECT_EQ(graphs.Find(Size(64, 1)), nullptr);
  EXPECT_TRUE(graphs.Count(Size(64, 1)));
  graphs.Add(Size(64, 1), {.graph = {}, .num_edges = 7});
  ASSERT_NE(graphs.Find(Size(64, 1)), nullptr);
  EXPECT_EQ(graphs.Find(Size(64, 1))->num_edges, 7);
  EXPECT_EQ(graphs.Find(Size(64, 2)), nullptr);
  EXPECT_FALSE(graphs.Count(Size(64, 1)));
  EXPECT_EQ(graphs.count(), 1u);
}

TEST(MixedGraphsTest, WhatARankCouldNotCaptureIsNotTriedAgain) {
  MixedGraphs graphs;
  graphs.Count(Size(96, 4));
  EXPECT_TRUE(graphs.Count(Size(96, 4)));
  graphs.Add(Size(96, 4), {});  // this rank could, another could not
  graphs.GiveUp(Size(96, 4));
  EXPECT_TRUE(graphs.GivenUp(Size(96, 4)));
  EXPECT_FALSE(graphs.GivenUp(Size(96, 8)));
  EXPECT_EQ(graphs.Find(Size(96, 4)), nullptr);
  EXPECT_EQ(graphs.count(), 0u);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(graphs.Count(Size(96, 4)));
}

// The steps alone decide which graph is destroyed, so that ranks have the same graphs afterwards.
TEST(MixedGraphsTest, RoomIsMadeForACaptureThatFails) {
  constexpr int kMost = static_cast<int>(MixedGraphs::kMostGraphs);
  MixedGraphs could, could_not;
  for (MixedGraphs* const rank : {&could, &could_not}) {
    for (int i = 1; i <= kMost; ++i) {
      rank->Count(Size(i, 0));
      EXPECT_TRUE(rank->Count(Size(i, 0)));
      rank->Add(Size(i, 0), {});
    }
    rank->Count(Size(kMost + 1, 0));
    EXPECT_TRUE(rank->Count(Size(kMost + 1, 0)));
  }
  could.Add(Size(kMost + 1, 0), {});
  for (MixedGraphs* const rank : {&could, &could_not}) {
    rank->GiveUp(Size(kMost + 1, 0));
    EXPECT_EQ(rank->count(), MixedGraphs::kMostGraphs - 1);
    EXPECT_EQ(rank->Find(Size(1, 0)), nullptr);
    EXPECT_NE(rank->Find(Size(2, 0)), nullptr);
  }
}

TEST(MixedGraphsTest, TheGraphUnusedForLongestMakesRoom) {
  constexpr int kMost = static_cast<int>(MixedGraphs::kMostGraphs);
  MixedGraphs graphs;
  const auto run = [&](int tokens) {
    if (!graphs.Count(Size(tokens, 0))) return false;
    graphs.Add(Size(tokens, 0), {});
    return true;
  };
  for (int i = 1; i <= kMost; ++i) {
    EXPECT_FALSE(run(i));
    EXPECT_TRUE(run(i));
  }
  EXPECT_FALSE(run(1));  // has a graph, and is now the latest
  EXPECT_FALSE(run(kMost + 1));
  EXPECT_EQ(graphs.count(), MixedGraphs::kMostGraphs);
  EXPECT_TRUE(run(kMost + 1));
  EXPECT_EQ(graphs.count(), MixedGraphs::kMostGraphs);
  EXPECT_NE(graphs.Find(Size(1, 0)), nullptr);
  EXPECT_EQ(graphs.Find(Size(2, 0)), nullptr);
  EXPECT_NE(graphs.Find(Size(3, 0)), nullptr);
  EXPECT_FALSE(run(2));  // counted anew, so that sizes that take turns are not captured each time
  EXPECT_TRUE(run(2));
  EXPECT_EQ(graphs.Find(Size(3, 0)), nullptr);
}

}  // namespace
}  // namespace millrace::cuda
