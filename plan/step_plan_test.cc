#include "plan/step_plan.h"

#include <functional>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

const StepLimits kLimits = {.max_num_seqs = 4,
                            .max_num_batched_tokens = 8,
                            .max_model_len = 64,
                            .num_blocks = {10},
                            .state = StateLayout::OnePool(16),
                            .vocab_size = 100};

// Whole contexts, a state of fixed size, and a window.
const StepLimits kThreeGroups = {
    .max_num_seqs = 4,
    .max_num_batched_tokens = 8,
    .max_model_len = 64,
    .num_blocks = {10, 3, 6},
    .state = {.block_size = 16,
              .groups = {PagedState(), SlotState{.bytes = 64}, PagedState{.window = 20}}},
    .vocab_size = 100};

// A new sequence with a prompt of three tokens, and a decode row.
StepPlan Plan() {
  StepPlan plan;
  plan.id = 7;
  plan.moves = {{.from = {8}, .to = {9}}};
  plan.starts = {{.slot = 2, .sampling = std::make_shared<SamplingParams>()}};
  plan.rows = {{.slot = 2,
                .start = 0,
                .num_tokens = 3,
                .tokens = {0, 3},
                .blocks = {0, 1},
                .logits = {0, 2}},
               {.slot = 0, .start = 40, .num_tokens = 1, .sampled_by = 6, .logits = {2, 3}}};
  plan.tokens = {5, 0, 99};
  plan.blocks = {9};
  plan.logits = {{.offset = 0, .target = 0}, {.offset = 2}, {.offset = 0}};
  return plan;
}

SamplingParams& Sampling(StepPlan& plan) {
  auto sampling = std::make_shared<SamplingParams>();
  SamplingParams& changed = *sampling;
  plan.starts[0].sampling = std::move(sampling);
  return changed;
}

TEST(StepPlanTest, TakesAPlanWithinTheContract) {
  EXPECT_TRUE(ValidatePlan(Plan(), kLimits).ok()) << ValidatePlan(Plan(), kLimits);
  StepPlan empty;
  empty.id = 1;
  EXPECT_TRUE(ValidatePlan(empty, kLimits).ok());
}

TEST(StepPlanTest, RefusesEachBreachAndNamesIt) {
  const struct {
    std::function<void(StepPlan&)> breach;
    std::string named;
  } kCases[] = {
      {[](StepPlan& p) { p.id = 0; }, "id is 0"},
      {[](StepPlan& p) { p.moves[0].group = 1; }, "moves[0].group is 1, allowed: 0 to 0"},
      {[](StepPlan& p) { p.moves[0].from = {10}; }, "moves[0].from is 10, allowed: 0 to 9"},
      {[](StepPlan& p) { p.moves[0].to = {-1}; }, "moves[0].to is -1"},
      {[](StepPlan& p) { p.moves[0].from = {.block = -1, .tier = StatePlace::Tier::kHost}; },
       "moves[0].from is -1"},
      {[](StepPlan& p) { p.moves.push_back({.from = {1}, .to = {9}}); },
       "moves[1].to is block 9 on the device, which an earlier move of group 0 writes"},
      {[](StepPlan& p) { p.moves.push_back({.from = {9}, .to = {1}}); },
       "moves[1].from is block 9 on the device, which a move of group 0 writes"},
      {[](StepPlan& p) { p.starts[0].slot = 4; }, "starts[0].slot is 4, allowed: 0 to 3"},
      {[](StepPlan& p) { p.starts.push_back(p.starts[0]); }, "starts[1].slot is 2 a second time"},
      {[](StepPlan& p) { p.starts[0].sampling = nullptr; }, "starts[0].sampling is null"},
      {[](StepPlan& p) { Sampling(p).temperature = 2.5f; }, "temperature is 2.5, allowed: 0 to 2"},
      {[](StepPlan& p) { Sampling(p).temperature = std::numeric_limits<float>::quiet_NaN(); },
       "temperature is nan"},
      {[](StepPlan& p) { Sampling(p).top_k = -1; }, "top_k is -1"},
      {[](StepPlan& p) { Sampling(p).top_p = 0; }, "top_p is 0"},
      {[](StepPlan& p) { Sampling(p).min_p = 1.5f; }, "min_p is 1.5"},
      {[](StepPlan& p) { Sampling(p).top_logprobs = 21; }, "top_logprobs is 21, allowed: 0 to 20"},
      {[](StepPlan& p) {
         Sampling(p).banned_tokens = {3, 100};
       },
       "banned_tokens is 100"},
      {[](StepPlan& p) { Sampling(p).typical_p = 0; },
       "typical_p is 0, allowed: above 0, at most 1"},
      {[](StepPlan& p) { Sampling(p).repetition_penalty = 0; }, "repetition_penalty is 0"},
      {[](StepPlan& p) { Sampling(p).frequency_penalty = 2.5f; }, "frequency_penalty is 2.5"},
      {[](StepPlan& p) { Sampling(p).presence_penalty = -3; }, "presence_penalty is -3"},
      {[](StepPlan& p) {
         Sampling(p).logit_bias = {{100, 1}};
       },
       "logit_bias' token is 100"},
      {[](StepPlan& p) {
         Sampling(p).logit_bias = {{1, 101}};
       },
       "logit_bias' bias is 101, allowed: -100 to 100"},
      {[](StepPlan& p) { Sampling(p).logit_bias.resize(1025); },
       "logit_bias' size is 1025, allowed: 0 to 1024"},
      {[](StepPlan& p) { Sampling(p).presence_penalty = 1; },
       "starts[0].history has 0 tokens, allowed: those of the sequence"},
      {[](StepPlan& p) {
         p.history = {1};
         p.starts[0].history = {0, 1};
       },
       "starts[0].history has 1 tokens, allowed: none without penalties"},
      {[](StepPlan& p) {
         Sampling(p).presence_penalty = 1;
         p.starts[0].history = {0, 1};
       },
       "starts[0].history is [0, 1) of an array of 0"},
      {[](StepPlan& p) {
         Sampling(p).presence_penalty = 1;
         p.history = {1, 2};
         p.starts[0].history = {0, 2};
         p.starts[0].prompt_tokens = 3;
       },
       "starts[0].prompt_tokens is 3, allowed: 0 to 2"},
      {[](StepPlan& p) {
         p.history = {5, 100};
       },
       "history[1].token is 100"},
      {[](StepPlan& p) { p.history.resize(65); }, "history has 65 tokens, allowed: 64"},
      {[](StepPlan& p) { p.rows[0].slot = -1; }, "rows[0].slot is -1"},
      {[](StepPlan& p) { p.rows[1].slot = 2; }, "rows[1].slot is 2 a second time"},
      {[](StepPlan& p) { p.rows[1].start = 64; }, "rows[1].start is 64, allowed: 0 to 63"},
      {[](StepPlan& p) { p.rows[0].num_tokens = 0; }, "rows[0].num_tokens is 0"},
      {[](StepPlan& p) { p.rows[0].start = 62; }, "rows[0].num_tokens is 3, allowed: 1 to 2"},
      {[](StepPlan& p) { p.rows[0].tokens.end = 4; }, "rows[0].tokens is [0, 4) of an array of 3"},
      {[](StepPlan& p) {
         p.rows[0].blocks = {1, 0};
       },
       "rows[0].blocks is [1, 0)"},
      {[](StepPlan& p) { p.rows[0].logits.begin = -1; }, "rows[0].logits is [-1, 2)"},
      {[](StepPlan& p) { p.rows[0].tokens.end = 2; }, "rows[0] has 2 host tokens for 3 inputs"},
      {[](StepPlan& p) { p.rows[0].sampled_by = 6; }, "rows[0] has sampled_by, and 3 host tokens"},
      {[](StepPlan& p) { p.rows[1].sampled_by = 7; },
       "rows[1].sampled_by is 7, allowed: steps before 7"},
      {[](StepPlan& p) { p.rows[1].sampled_by = std::nullopt; }, "rows[1] has 0 host tokens for 1"},
      {[](StepPlan& p) { p.tokens[1] = 100; }, "rows[0].tokens is 100, allowed: 0 to 99"},
      {[](StepPlan& p) { p.blocks[0] = 10; }, "rows[0].blocks is 10, allowed: 0 to 9"},
      {[](StepPlan& p) { p.blocks[0] = kNoBlock; }, "rows[0].blocks is -1, allowed: 0 to 9"},
      {[](StepPlan& p) { p.logits[1].offset = 3; }, "rows[0].logits' offset is 3, allowed: 1 to 2"},
      {[](StepPlan& p) { p.logits[1].offset = 0; }, "rows[0].logits' offset is 0, allowed: 1 to 2"},
      {[](StepPlan& p) { p.logits[0].target = -5; }, "rows[0].logits' target is -5"},
      {[](StepPlan& p) { p.logits[0].target = std::nullopt; }, "samples more than one position"},
      {[](StepPlan& p) { p.rows[1].num_draft = 1; }, "rows[1].num_draft is 1, allowed: 0 to 0"},
      {[](StepPlan& p) { p.rows[1].num_tokens = 2; }, "0 host tokens for 2 inputs"},
      {[](StepPlan& p) {
         p.rows[0].num_draft = 1;
         p.logits[0].target = std::nullopt;
       },
       "rows[0].logits samples 2 positions, allowed: the 2 from the token before the draft on"},
      {[](StepPlan& p) { p.rows[0].num_draft = 2; }, "rows[0].logits samples 1 positions"},
      {[](StepPlan& p) {
         p.rows.push_back({.slot = 1, .start = 0, .num_tokens = 6, .tokens = {3, 9}});
         p.tokens.resize(9);
       },
       "rows have 10 input tokens, allowed: 8"},
  };
  for (const auto& test : kCases) {
    StepPlan plan = Plan();
    test.breach(plan);
    const absl::Status status = ValidatePlan(plan, kLimits);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.named;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.named));
  }
}

TEST(StepPlanTest, GroupsHaveAsManyBlocksAndOnlyWindowsHaveNone) {
  const auto with = [](std::vector<BlockId> blocks) {
    StepPlan plan = Plan();
    plan.blocks = std::move(blocks);
    plan.rows[0].blocks = {0, static_cast<int32_t>(plan.blocks.size())};
    return ValidatePlan(plan, kThreeGroups);
  };
  EXPECT_TRUE(with({9, 5}).ok()) << with({9, 5});
  EXPECT_TRUE(with({8, 9, kNoBlock, 0}).ok());
  EXPECT_THAT(std::string(with({7, 8, 5}).message()),
              HasSubstr("rows[0].blocks has 3 blocks, allowed: as many for each of 2 groups"));
  EXPECT_THAT(std::string(with({kNoBlock, 5}).message()),
              HasSubstr("rows[0].blocks of group 0 is -1, allowed: 0 to 9"));
  EXPECT_THAT(std::string(with({9, 6}).message()),
              HasSubstr("rows[0].blocks of group 2 is 6, allowed: 0 to 5"));
}

TEST(StepPlanTest, MovesAreWithinAGroupThatHasBlocks) {
  const auto with = [](std::vector<StateMove> moves) {
    StepPlan plan{.id = 1};
    plan.moves = std::move(moves);
    return ValidatePlan(plan, kThreeGroups);
  };
  constexpr auto kHost = StatePlace::Tier::kHost;
  // The same number names another block in another group, and on the host.
  EXPECT_TRUE(with({{.group = 0, .from = {1}, .to = {2}},
                    {.group = 2, .from = {2}, .to = {1}},
                    {.group = 0, .from = {3}, .to = {.block = 2, .tier = kHost}},
                    {.group = 2, .from = {.block = 1000, .tier = kHost}, .to = {5}}})
                  .ok());
  // A checkpoint of slot 3, and a sequence that begins from another in slot 0.
  EXPECT_TRUE(
      with({{.group = 1, .from = {3}, .to = {6}}, {.group = 1, .from = {4}, .to = {0}}}).ok());
  EXPECT_THAT(std::string(with({{.group = 1, .from = {0}, .to = {7}}}).message()),
              HasSubstr("moves[0].to is 7, allowed: 0 to 6"));
  EXPECT_THAT(std::string(with({{.group = 2, .from = {0}, .to = {6}}}).message()),
              HasSubstr("moves[0].to is 6, allowed: 0 to 5"));
  EXPECT_THAT(std::string(with({{.group = 2, .from = {0}, .to = {.block = 7, .tier = kHost}},
                                {.group = 2, .from = {1}, .to = {.block = 7, .tier = kHost}}})
                              .message()),
              HasSubstr("moves[1].to is block 7 on the host, which an earlier move of group 2"));
}

}  // namespace
}  // namespace millrace
