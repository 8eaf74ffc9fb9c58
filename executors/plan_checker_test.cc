#include "executors/plan_checker.h"

#include <functional>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

const StepLimits kLimits = {.max_num_seqs = 4,
                            .max_num_batched_tokens = 64,
                            .max_model_len = 40,
                            .num_blocks = {10},
                            .state = StateLayout::OnePool(16),
                            .vocab_size = 100};

ModelInfo Info(const StepLimits& limits, bool late_masks = false, int32_t max_draft_tokens = 0) {
  ModelInfo info;
  info.takes_late_masks = late_masks;
  info.max_draft_tokens = max_draft_tokens;
  info.max_step_draft_tokens = max_draft_tokens;
  info.limits = limits;
  return info;
}

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

// The step after Decode's, with room for a draft of three tokens.
StepPlan Drafted(StepId id, int32_t start) {
  StepPlan plan;
  plan.id = id;
  plan.logits = {{.offset = 0}, {.offset = 1}, {.offset = 2}, {.offset = 3}};
  plan.rows = {{.slot = 1,
                .start = start,
                .num_tokens = 4,
                .sampled_by = id - 1,
                .num_draft = 3,
                .logits = {0, 4}}};
  return plan;
}

TEST(PlanCheckerTest, ARowMayBeginWhereADraftMayEnd) {
  const auto after = [](int32_t start) {
    PlanChecker checker(Info(kLimits, /*late_masks=*/false, /*max_draft_tokens=*/3));
    EXPECT_TRUE(checker.Check(Prompt()).ok());
    EXPECT_TRUE(checker.Check(Decode()).ok());
    EXPECT_TRUE(checker.Check(Drafted(7, 21)).ok());
    return checker.Check(Drafted(8, start)).ok();
  };
  EXPECT_FALSE(after(21));
  EXPECT_TRUE(after(22));
  EXPECT_TRUE(after(25));
  EXPECT_FALSE(after(26));
  PlanChecker none(Info(kLimits));
  EXPECT_TRUE(none.Check(Prompt()).ok());
  EXPECT_TRUE(none.Check(Decode()).ok());
  EXPECT_THAT(none.Check(Drafted(7, 21)).message(), HasSubstr("rows[0].num_draft is 3"));
}

TEST(PlanCheckerTest, ADraftHasARowThatWaitsForIt) {
  PlanChecker checker(Info(kLimits, /*late_masks=*/false, /*max_draft_tokens=*/3));
  EXPECT_TRUE(checker.Check(Prompt()).ok());
  EXPECT_TRUE(checker.Check(Decode()).ok());
  EXPECT_TRUE(checker.Check(Drafted(7, 21)).ok());
  const auto wrong = [&](LateDraft draft) {
    return std::string(checker.CheckDrafts({std::move(draft)}).message());
  };
  EXPECT_THAT(wrong({.step = 6, .row = 0, .tokens = {}}), HasSubstr("waits for no draft"));
  EXPECT_THAT(wrong({.step = 7, .row = 1, .tokens = {}}), HasSubstr("waits for no draft"));
  EXPECT_THAT(wrong({.step = 7, .row = 0, .tokens = {1, 2, 3, 4}}), HasSubstr("4 tokens"));
  EXPECT_THAT(wrong({.step = 7, .row = 0, .tokens = {1, 100}}), HasSubstr("token 100"));
  EXPECT_TRUE(checker.CheckDrafts({{.step = 7, .row = 0, .tokens = {1, 99}}}).ok());
  EXPECT_THAT(wrong({.step = 7, .row = 0, .tokens = {}}), HasSubstr("waits for no draft"));
}

// The state of recurrent layers is not in any block.
TEST(PlanCheckerTest, StateAtASlotBeginsWithTheSequenceOrACheckpoint) {
  StepLimits limits = kLimits;
  limits.state.groups.push_back(SlotState{.bytes = 64});
  limits.num_blocks.push_back(2);
  PlanChecker checker(Info(limits));
  EXPECT_TRUE(checker.Check(Prompt()).ok());
  EXPECT_TRUE(checker.Check(Decode()).ok());
  StepPlan again = Prompt();
  again.id = 9;
  again.rows[0].start = 16;
  again.rows[0].num_tokens = 4;
  again.rows[0].tokens = {0, 4};
  again.logits[0].offset = 3;
  EXPECT_THAT(std::string(checker.Check(again).message()),
              HasSubstr("rows[0].start is 16 in a new slot; allowed: 0, or a move of a state of "
                        "group 1 to slot 1"));
  again.moves = {{.group = 1, .from = {limits.max_num_seqs}, .to = {2}}};
  EXPECT_FALSE(checker.Check(again).ok());
  again.moves[0].to.block = 1;
  EXPECT_TRUE(checker.Check(again).ok()) << checker.Check(again);
}

TEST(PlanCheckerTest, FollowsASequence) {
  PlanChecker checker(Info(kLimits));
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
  PlanChecker checker(Info(kLimits));
  ASSERT_TRUE(checker.Check(Prompt()).ok());
  for (const auto& test : kCases) {
    StepPlan plan = Decode();
    test.breach(plan);
    EXPECT_THAT(std::string(checker.Check(plan).message()), HasSubstr(test.named));
  }
  EXPECT_TRUE(checker.Check(Decode()).ok());
}

TEST(PlanCheckerTest, AFreshSlotForgetsWhatWasSampled) {
  PlanChecker checker(Info(kLimits));
  ASSERT_TRUE(checker.Check(Prompt()).ok());
  StepPlan plan = Decode();
  plan.starts = {{.slot = 1, .sampling = std::make_shared<SamplingParams>()}};
  plan.blocks = {3, 4};
  plan.rows[0].blocks = {0, 2};
  EXPECT_THAT(std::string(checker.Check(plan).message()), HasSubstr("sampled_by is 5"));
}

// Whole contexts and a window of 20 positions: position 36 reads those from 17 on.
TEST(PlanCheckerTest, ABlockMayBeMissingBeforeTheWindowOnly) {
  StepLimits limits = kLimits;
  limits.num_blocks = {10, 10};
  limits.state.groups.push_back(PagedState{.window = 20});
  const auto begins_at = [&](int32_t start, std::vector<BlockId> blocks) {
    StepPlan plan = Prompt();
    plan.blocks = std::move(blocks);
    plan.rows[0].blocks = {0, static_cast<int32_t>(plan.blocks.size())};
    plan.rows[0].start = start;
    plan.rows[0].num_tokens = 4;
    plan.rows[0].tokens = {0, 4};
    plan.logits[0].offset = 3;
    return PlanChecker(Info(limits)).Check(plan);
  };
  EXPECT_TRUE(begins_at(36, {1, 2, 3, kNoBlock, 2, 3}).ok());
  EXPECT_THAT(std::string(begins_at(36, {1, 2, 3, kNoBlock, kNoBlock, 3}).message()),
              HasSubstr("rows[0].blocks has none of group 1 for the positions from 16 on"));
  EXPECT_THAT(std::string(begins_at(34, {1, 2, 3, kNoBlock, 2, 3}).message()),
              HasSubstr("rows[0].blocks has none of group 1 for the positions from 0 on"));
  // Positions have a place in the tables of all groups.
  EXPECT_THAT(std::string(begins_at(16, {1, 2}).message()),
              HasSubstr("slot 1 has 1 blocks of 16 tokens for 20 positions"));
}

TEST(PlanCheckerTest, MovesStayOnTheDevice) {
  const auto moves = [](const StateMove& move) {
    StepPlan plan = Prompt();
    plan.moves = {{.from = {5}, .to = {6}}, move};
    return PlanChecker(Info(kLimits)).Check(plan);
  };
  EXPECT_TRUE(moves({.from = {7}, .to = {8}}).ok());
  const absl::Status up = moves({.from = {7}, .to = {.block = 0, .tier = StatePlace::Tier::kHost}});
  EXPECT_EQ(up.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(up.message()), HasSubstr("moves[1].to.tier is the host"));
  const absl::Status down =
      moves({.from = {.block = 0, .tier = StatePlace::Tier::kHost}, .to = {7}});
  EXPECT_EQ(down.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(down.message()), HasSubstr("moves[1].from.tier is the host"));
}

std::shared_ptr<const SampleMask> AnyMask(size_t words) {
  return std::make_shared<const SampleMask>(words, 1);
}

TEST(PlanCheckerTest, AMaskHasAPlaceThatWaitsForIt) {
  PlanChecker checker(Info(kLimits, /*late_masks=*/true));
  StepPlan plan = Prompt();
  plan.logits[0].late_mask = true;
  ASSERT_TRUE(checker.Check(plan).ok());
  const LateMask right{.step = 5, .logits = 0, .mask = AnyMask(4)};
  const LateMask wrong[] = {{.step = 4, .logits = 0, .mask = AnyMask(4)},
                            {.step = 5, .logits = 1, .mask = AnyMask(4)}};
  for (const LateMask& late : wrong) {
    const absl::Status status = checker.CheckMasks({right, late});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("masks[1] is of step"));
  }
  for (const auto& mask : {AnyMask(3), AnyMask(5), std::shared_ptr<const SampleMask>()}) {
    const absl::Status status = checker.CheckMasks({{.step = 5, .logits = 0, .mask = mask}});
    EXPECT_THAT(std::string(status.message()), HasSubstr("words, allowed: 4"));
  }
  EXPECT_FALSE(checker.CheckMasks({right, right}).ok());
  EXPECT_TRUE(checker.CheckMasks({right}).ok());
  EXPECT_FALSE(checker.CheckMasks({right}).ok()) << "it has one by now";
}

}  // namespace
}  // namespace millrace
