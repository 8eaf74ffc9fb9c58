#include "nodes/plan_messages.h"

#include <cmath>
#include <memory>

#include "gtest/gtest.h"

namespace millrace::nodes {
namespace {

// Returns the plan's message: every field, in a fixed order.
std::string Bytes(const StepPlan& plan) {
  v1::StepPlan message;
  ToMessage(plan, message);
  return message.SerializeAsString();
}

StepPlan There(const StepPlan& plan) {
  v1::StepPlan message;
  EXPECT_TRUE(message.ParseFromString(Bytes(plan)));
  return FromMessage(message);
}

// No field has its default.
StepPlan FullPlan() {
  SamplingParams sampling{.temperature = 0.7f,
                          .top_k = -1,
                          .top_p = 0.9f,
                          .min_p = 0.1f,
                          .typical_p = 0.8f,
                          .repetition_penalty = 1.1f,
                          .frequency_penalty = -0.5f,
                          .presence_penalty = 0.25f,
                          .logit_bias = {{7, -100.0f}, {9, std::nextafter(1.0f, 2.0f)}},
                          .seed = ~uint64_t{0},
                          .sample_index = 3,
                          .top_logprobs = 0,
                          .banned_tokens = {1, 2, 3},
                          .banned_before = 12};
  StepPlan plan;
  plan.id = uint64_t{1} << 40;
  plan.moves = {{.group = 0, .from = {1}, .to = {2}},
                {.group = 1,
                 .from = {.block = 3, .tier = StatePlace::Tier::kHost},
                 .to = {.block = 4, .tier = StatePlace::Tier::kDevice}},
                {.group = 2,
                 .from = {.block = 5, .tier = StatePlace::Tier::kDevice},
                 .to = {.block = 6, .tier = StatePlace::Tier::kHost}}};
  plan.starts = {{5, std::make_shared<SamplingParams>(sampling), {1, 3}, 2},
                 {6, std::make_shared<SamplingParams>(), {0, 0}, 0}};
  plan.rows = {{.slot = 5,
                .start = 16,
                .num_tokens = 2,
                .tokens = {0, 2},
                .sampled_by = std::nullopt,
                .blocks = {0, 2},
                .logits = {0, 1}},
               {.slot = 6,
                .start = 3,
                .num_tokens = 1,
                .tokens = {2, 2},
                .sampled_by = 0,
                .blocks = {2, 2},
                .logits = {1, 2}}};
  plan.tokens = {100, 0};
  plan.blocks = {8, kNoBlock};
  plan.logits = {{.offset = 1, .target = std::nullopt}, {.offset = 0, .target = 0}};
  plan.logits[0].mask = std::make_shared<SampleMask>(SampleMask{0x80000001, 0, ~0u});
  plan.history = {4, 5, 6};
  return plan;
}

TEST(PlanMessagesTest, EveryFieldArrives) {
  const StepPlan plan = FullPlan();
  const StepPlan there = There(plan);
  EXPECT_EQ(Bytes(there), Bytes(plan));
  EXPECT_EQ(there.id, plan.id);
  ASSERT_EQ(there.moves.size(), 3);
  for (size_t i = 0; i < plan.moves.size(); ++i) {
    EXPECT_EQ(there.moves[i].group, plan.moves[i].group) << i;
    EXPECT_EQ(there.moves[i].from, plan.moves[i].from) << i;
    EXPECT_EQ(there.moves[i].to, plan.moves[i].to) << i;
  }
  ASSERT_EQ(there.starts.size(), 2);
  EXPECT_EQ(there.starts[0].slot, 5);
  EXPECT_EQ(there.starts[0].history, (Range{1, 3}));
  EXPECT_EQ(there.starts[0].prompt_tokens, 2);
  ASSERT_EQ(there.rows.size(), 2);
  EXPECT_EQ(there.rows[0].start, 16);
  EXPECT_EQ(there.rows[0].tokens, (Range{0, 2}));
  EXPECT_EQ(there.rows[0].sampled_by, std::nullopt);
  EXPECT_EQ(there.rows[1].sampled_by, 0);
  EXPECT_EQ(there.rows[1].blocks, (Range{2, 2}));
  EXPECT_EQ(there.tokens, plan.tokens);
  EXPECT_EQ(there.blocks, plan.blocks);
  EXPECT_EQ(there.blocks, plan.blocks);
  ASSERT_EQ(there.logits.size(), 2);
  EXPECT_EQ(there.logits[0].target, std::nullopt);
  EXPECT_EQ(there.logits[1].target, 0);
  ASSERT_NE(there.logits[0].mask, nullptr);
  EXPECT_EQ(*there.logits[0].mask, *plan.logits[0].mask);
  EXPECT_EQ(there.logits[1].mask, nullptr);
  EXPECT_EQ(there.history, plan.history);
}

TEST(PlanMessagesTest, SamplingParametersKeepTheirBits) {
  const SamplingParams sent = *FullPlan().starts[0].sampling;
  const SamplingParams there = *There(FullPlan()).starts[0].sampling;
  EXPECT_EQ(there.temperature, sent.temperature);
  EXPECT_EQ(there.top_k, -1);
  EXPECT_EQ(there.top_p, sent.top_p);
  EXPECT_EQ(there.min_p, sent.min_p);
  EXPECT_EQ(there.typical_p, sent.typical_p);
  EXPECT_EQ(there.repetition_penalty, sent.repetition_penalty);
  EXPECT_EQ(there.frequency_penalty, sent.frequency_penalty);
  EXPECT_EQ(there.presence_penalty, sent.presence_penalty);
  ASSERT_EQ(there.logit_bias.size(), 2);
  EXPECT_EQ(there.logit_bias[1].token, 9);
  EXPECT_EQ(there.logit_bias[1].bias, sent.logit_bias[1].bias);
  EXPECT_EQ(there.seed, sent.seed);
  EXPECT_EQ(there.sample_index, 3);
  EXPECT_EQ(there.top_logprobs, 0);
  EXPECT_EQ(there.banned_tokens, sent.banned_tokens);
  EXPECT_EQ(there.banned_before, 12);
  EXPECT_EQ(There(FullPlan()).starts[1].sampling->top_logprobs, std::nullopt);
}

}  // namespace
}  // namespace millrace::nodes
