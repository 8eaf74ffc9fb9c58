#include "server/bench/measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "executors/factory.h"
#include "server/bench/counting_executor_test_util.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::unique_ptr<Executor> MakeExecutor(int budget, int64_t kv_cache_memory = int64_t{1} << 30) {
  FakeSpec device;
  device.max_num_seqs = 4;
  device.max_num_batched_tokens = budget;
  device.max_model_len = 256;
  device.kv_cache_memory = kv_cache_memory;
  device.step_us = 1000;  // far more than what runs differ by
  auto executor = LoadExecutor({}, device);
  EXPECT_TRUE(executor.ok()) << executor.status();
  return *std::move(executor);
}

std::unique_ptr<OfflineEngine> MakeEngine(int budget, int64_t kv_cache_memory = int64_t{1} << 30) {
  return *OfflineEngine::Create(MakeExecutor(budget, kv_cache_memory), /*prefix_caching=*/true);
}

std::unique_ptr<OfflineEngine> MakeEngineWithMixtures() {
  return *OfflineEngine::Create(std::make_unique<CountingExecutor>(MakeExecutor(64)),
                                /*prefix_caching=*/true);
}

const MeasureOptions kTwice = {.reps = 2, .temperature = 0, .read_gpu = false};

TEST(MeasureTest, Medians) {
  EXPECT_EQ(Median({3}), 3);
  EXPECT_EQ(Median({9, 1, 2}), 2);
  EXPECT_EQ(Median({4, 1, 3, 2}), 2.5);
}

TEST(MeasureTest, TwoLengthsGiveAStep) {
  auto engine = MakeEngine(64);
  PromptSource source(1);
  const auto figures = MeasurePoint(*engine, {4, 16, {4, 36}}, kTwice, source);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_THAT(figures->void_because, IsEmpty());
  ASSERT_THAT(figures->lengths, SizeIs(2));
  EXPECT_THAT(figures->lengths[0].wall_ms, SizeIs(2));
  EXPECT_EQ(figures->lengths[1].median_ms, Median(figures->lengths[1].wall_ms));
  ASSERT_TRUE(figures->step_ms.has_value());
  EXPECT_EQ(*figures->step_ms,
            (figures->lengths[1].median_ms - figures->lengths[0].median_ms) / 32);
  EXPECT_EQ(*figures->output_tokens_per_s, 4 * 1000.0 / *figures->step_ms);
  EXPECT_FALSE(figures->prompt_tokens_per_s.has_value());
  EXPECT_FALSE(figures->experts.has_value());  // it has no mixture
}

TEST(MeasureTest, TwoLengthsGiveTheExpertsOfAStep) {
  auto engine = MakeEngineWithMixtures();
  PromptSource source(1);
  const auto figures = MeasurePoint(*engine, {4, 16, {4, 36}}, kTwice, source);
  ASSERT_TRUE(figures.ok()) << figures.status();
  ASSERT_TRUE(figures->experts.has_value());
  const ExpertFigures& experts = *figures->experts;
  EXPECT_THAT(experts.touched, ElementsAre(4, 10));  // a token for each sequence
  EXPECT_EQ(experts.experts, 48);
  EXPECT_EQ(experts.expert_bytes, 4 * 100 + 10 * 1000);
  const double bytes = 4 + 4 * (16 + 20) + 14;
  EXPECT_EQ(experts.step_bytes, bytes);
  EXPECT_EQ(experts.read_rate, 1e6);
  EXPECT_DOUBLE_EQ(*experts.share, bytes / (*figures->step_ms / 1000) / 1e6);
}

TEST(MeasureTest, OneLengthGivesTheExpertsOfAllItsSteps) {
  auto engine = MakeEngineWithMixtures();
  PromptSource source(1);
  const auto figures = MeasurePoint(*engine, {2, 48, {1}}, kTwice, source);  // 96 tokens, 2 steps
  ASSERT_TRUE(figures.ok()) << figures.status();
  ASSERT_TRUE(figures->experts.has_value());
  EXPECT_THAT(figures->experts->touched, ElementsAre(48, 10));
  EXPECT_FALSE(figures->experts->step_bytes.has_value());
  EXPECT_FALSE(figures->experts->share.has_value());
}

TEST(MeasureTest, OneTokenIsAPrefill) {
  auto engine = MakeEngine(64);
  PromptSource source(1);
  const auto figures = MeasurePoint(*engine, {2, 100, {1}}, kTwice, source);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_FALSE(figures->step_ms.has_value());
  EXPECT_FALSE(figures->output_tokens_per_s.has_value());
  EXPECT_EQ(*figures->prompt_tokens_per_s, 1000.0 * 200 / figures->lengths[0].median_ms);
}

// Prompts of 60 tokens through a budget of 64: the first sequences have ended before the last
// begins.
TEST(MeasureTest, AStepThatTheWholeBatchNeverHasIsVoid) {
  auto engine = MakeEngine(64);
  PromptSource source(1);
  const auto figures = MeasurePoint(*engine, {4, 60, {2, 8}}, kTwice, source);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_THAT(figures->void_because, ElementsAre(HasSubstr("raise the shorter length")));
}

TEST(MeasureTest, WhatDoesNotFitIsRefusedWithBothNumbers) {
  auto engine = MakeEngine(64);
  const ModelInfo& model = engine->info();
  const auto error = [&](const BenchPoint& point) {
    return std::string(CheckPoint(point, model).message());
  };
  EXPECT_TRUE(CheckPoint({4, 128, {16, 128}}, model).ok());
  EXPECT_EQ(error({5, 16, {1}}), "a batch of 5 sequences is more than --max-num-seqs (4)");
  EXPECT_EQ(error({1, 250, {2, 7}}),
            "250 prompt tokens and 7 generated ones are more than --max-model-len (256)");
  ModelInfo small = model;
  small.limits.num_blocks = {8};
  EXPECT_EQ(CheckPoint({2, 64, {1}}, small).message(),
            "2 sequences of 65 tokens take 10 KV blocks, and there are 8");
  // A window of 20 lies in three blocks of 16.
  small.limits.num_blocks = {10, 6};
  small.limits.state.groups.push_back(PagedState{.window = 20});
  EXPECT_TRUE(CheckPoint({2, 64, {1}}, small).ok());
  small.limits.num_blocks = {10, 5};
  EXPECT_EQ(CheckPoint({2, 64, {1}}, small).message(),
            "2 sequences of 65 tokens take 6 KV blocks for windows of 20, and there are 5");
}

TEST(MeasureTest, PromptsDifferFromTheFirstTokenAndStayInTheVocabulary) {
  PromptSource source(1);
  const auto prompts = DrawPrompts({64, 16, {1}}, 50'000, source);
  ASSERT_THAT(prompts, SizeIs(64));
  int alike = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_THAT(prompts[i], SizeIs(16));
    for (const Token token : prompts[i]) EXPECT_TRUE(token >= 0 && token < 50'000);
    for (size_t j = 0; j < i; ++j) alike += prompts[i][0] == prompts[j][0];
  }
  EXPECT_LE(alike, 2);
  EXPECT_NE(DrawPrompts({1, 16, {1}}, 50'000, source)[0], prompts[0]);
}

}  // namespace
}  // namespace millrace
