#include "executors/plan_checker.h"

#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr StepLimits kLimits = {.max_num_seqs = 4,
                                .max_num_batched_tokens = 64,
                                .max_model_len = 40,
                                .num_blocks = 10,
                                .block_size = 16,
                                .vocab_size = 100};

// A plan with a prompt of 20 tokens in slot 1, which samples.
StepPlan Prompt() {
  StepPlan plan;
  plan.id = 5;
  plan.starts = {{.slot = 1, .sampling = std::make_shared<SamplingParams>()}};
  plan.tokens.assign(20, 7);
  plan.blocks = {3, 4};
  plan.logits = {{.offset = 19}};
  plan.rows = {{.slot = 1,
                .start = 0,
                .num_tokens = 20,
                .tokens = {0, 20},
                .blocks = {0, 2},
                .logits = {0, 1}}};
  return plan;
}

// The step after Prompt's.
StepPlan Decode() {
  StepPlan plan;
  plan.id = 6;
  plan.logits = {{.offset = 0}};
  plan.rows = {{.slot = 1, .start = 20, .num_tokens = 1, .sampled_by = 5, .logits = {0, 1}}};
  return plan;
}

TEST(PlanCheckerTest, FollowsASequence) {
  PlanChecker checker(kLimits);
  EXPECT_TRUE(checker.Check(Prompt()).ok());
  EXPECT_TRUE(checker.Check(Decode()).ok());
  // The slot starts again, with a cached prefix of one block.
  StepPlan again = Prompt();
  again.id = 9;
  again.rows[0].start = 16;
  again.rows[0].num_tokens = 4;
  again.rows[0].tokens = {0, 4};
  again.logits[0].offset = 3;
  EXPECT_TRUE(checker.Check(again).ok());
}

TEST(PlanCheckerTest, RefusesWhatDoesNotContinueAndNotesNothing) {
  const struct {
    std::function<void(StepPlan&)> breach;
    std::string named;
  } kCases[] = {
      {[](StepPlan& p) {
         p.id = 5;
         p.rows[0].sampled_by = 4;
       },
       "id is 5, but the last plan's was 5"},
      {[](StepPlan& p) { p.rows[0].slot = 2; }, "rows[0].slot is 2, which no plan started"},
      {[](StepPlan& p) { p.rows[0].start = 21; }, "rows[0].start is 21, but slot 1 has 20 tokens"},
      {[](StepPlan& p) { p.rows[0].sampled_by = 4; },
       "rows[0].sampled_by is 4, but the last step that sampled"},
      {[](StepPlan& p) {
         p.blocks = {5, 6};
         p.rows[0].blocks = {0, 2};
       },
       "slot 1 would have 4 blocks, allowed: 3"},
      {[](StepPlan& p) {
         p.rows[0].num_tokens = 13;
         p.rows[0].sampled_by.reset();
         p.rows[0].tokens = {0, 13};
         p.tokens.resize(13);
       },
       "slot 1 has 2 blocks of 16 tokens for 33 positions"},
      {[](StepPlan& p) { p.rows[0].num_tokens = 0; }, "num_tokens is 0"},
  };
  PlanChecker checker(kLimits);
  ASSERT_TRUE(checker.Check(Prompt()).ok());
  for (const auto& test : kCases) {
    StepPlan plan = Decode();
    test.breach(plan);
    EXPECT_THAT(std::string(checker.Check(plan).message()), HasSubstr(test.named));
  }
  EXPECT_TRUE(checker.Check(Decode()).ok());
}

TEST(PlanCheckerTest, AFreshSlotForgetsWhatWasSampled) {
  PlanChecker checker(kLimits);
  ASSERT_TRUE(checker.Check(Prompt()).ok());
  StepPlan plan = Decode();
  plan.starts = {{.slot = 1, .sampling = std::make_shared<SamplingParams>()}};
  plan.blocks = {3, 4};
  plan.rows[0].blocks = {0, 2};
  EXPECT_THAT(std::string(checker.Check(plan).message()), HasSubstr("sampled_by is 5"));
}

}  // namespace
}  // namespace millrace
