#include "server/bench/offline_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/fault_points.h"
#include "executors/factory.h"

namespace millrace {
namespace {

using testing::HasSubstr;

std::unique_ptr<OfflineEngine> MakeEngine(int budget = 64, int seqs = 4) {
  FakeSpec device;
  device.max_num_seqs = seqs;
  device.max_num_batched_tokens = budget;
  device.max_model_len = 256;
  auto executor = LoadExecutor({}, device);
  EXPECT_TRUE(executor.ok()) << executor.status();
  auto engine = OfflineEngine::Create(*std::move(executor), /*prefix_caching=*/true);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

// Prompts that differ from the first token on, and from those of other batches.
OfflineBatch Batch(int sequences, int prompt_tokens, int new_tokens) {
  static Token next = 0;
  OfflineBatch batch{.new_tokens = new_tokens};
  for (int i = 0; i < sequences; ++i) batch.prompts.emplace_back(prompt_tokens, next++ % 256);
  return batch;
}

TEST(OfflineEngineTest, OnePromptIsAStepOfItsPromptAndOneForEachTokenAfterTheFirst) {
  auto engine = MakeEngine();
  const auto run = engine->Generate(Batch(1, 20, 5));
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->steps, 5);
  EXPECT_EQ(run->whole_steps, 4);
  EXPECT_EQ(run->first_whole_step, 1);
  EXPECT_EQ(run->prefix_hits, 0);
  EXPECT_EQ(run->preemptions, 0);
}

TEST(OfflineEngineTest, ABatchStartsTogether) {
  auto engine = MakeEngine();
  for (int i = 0; i < 20; ++i) {
    const auto run = engine->Generate(Batch(3, 20, 5));
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->steps, 5);
    EXPECT_EQ(run->whole_steps, 4);
  }
}

// 3 prompts of 40 tokens through a budget of 64: while one is worked through, others decode.
TEST(OfflineEngineTest, OnlyStepsOfTheWholeBatchCountAsWhole) {
  auto engine = MakeEngine();
  const auto run = engine->Generate(Batch(3, 40, 10));
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->first_whole_step, 2);
  EXPECT_EQ(run->whole_steps, 8);
  EXPECT_EQ(run->steps, 11);
}

TEST(OfflineEngineTest, PrefixHitsAreCounted) {
  auto engine = MakeEngine();
  const OfflineBatch batch = Batch(1, 33, 2);
  ASSERT_TRUE(engine->Generate(batch).ok());
  const auto again = engine->Generate(batch);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->prefix_hits, 32);
}

TEST(OfflineEngineTest, WhatCanNeverFitIsRefused) {
  auto engine = MakeEngine();
  const auto run = engine->Generate(Batch(1, 250, 10));
  ASSERT_FALSE(run.ok());
  EXPECT_THAT(std::string(run.status().message()), HasSubstr("256"));
  EXPECT_FALSE(engine->Generate({}).ok());
  EXPECT_TRUE(engine->Generate(Batch(1, 4, 1)).ok());
}

TEST(OfflineEngineTest, AFailedDeviceEndsTheRunAndAllThatFollow) {
  ASSERT_TRUE(ArmFaultPoints("fake.device_error@3").ok());
  auto engine = MakeEngine();
  EXPECT_FALSE(engine->Generate(Batch(2, 4, 10)).ok());
  EXPECT_FALSE(engine->Generate(Batch(1, 4, 1)).ok());
  DisarmFaultPoints();
}

TEST(OfflineEngineTest, AFailedRowIsAnError) {
  ASSERT_TRUE(ArmFaultPoints("fake.row_error").ok());
  auto engine = MakeEngine();
  EXPECT_FALSE(engine->Generate(Batch(2, 4, 10)).ok());
  EXPECT_TRUE(engine->Generate(Batch(2, 4, 10)).ok());
  DisarmFaultPoints();
}

}  // namespace
}  // namespace millrace
