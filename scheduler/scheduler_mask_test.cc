// Sequences whose tokens are sampled under masks.
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/scheduler.h"
#include "scheduler/scheduler_script_test_util.h"

namespace millrace {
namespace {

std::shared_ptr<const SampleMask> AnyMask(const SchedulerOptions& options, uint32_t bits) {
  return std::make_shared<SampleMask>((options.limits.vocab_size + 31) / 32, bits);
}

class SchedulerMaskTest : public testing::Test {
 protected:
  SchedulerMaskTest() : scheduler_(*Scheduler::Create(options_)) {}

  void Add(SequenceId id, std::shared_ptr<const SampleMask> mask, int32_t max_tokens = 9) {
    SequenceRequest request{.id = id,
                            .prompt = {1, 2, static_cast<Token>(3 + id)},
                            .sampling = std::make_shared<const SamplingParams>(),
                            .stop = {.max_tokens = max_tokens},
                            .first_mask = std::move(mask)};
    ASSERT_TRUE(scheduler_->Add(std::move(request)).ok());
  }

  // Answers a plan with token 5 for each position that is sampled.
  std::vector<TokenEvent> Commit(const StepPlan& plan) {
    StepResult result{.id = plan.id};
    for (const StepRow& row : plan.rows) {
      const auto begin = static_cast<int32_t>(result.tokens.size());
      for (int32_t at = row.logits.begin; at < row.logits.end; ++at) result.tokens.push_back({5});
      result.rows.push_back(
          {.slot = row.slot, .tokens = {begin, static_cast<int32_t>(result.tokens.size())}});
    }
    std::vector<TokenEvent> events;
    EXPECT_TRUE(scheduler_->Commit(result, {}, &events).ok());
    EXPECT_EQ(SchedulerAuditor::Audit(*scheduler_), "");
    return events;
  }

  const SchedulerOptions options_ = SmallOptions(4, 16, 16, /*prefix_caching=*/false);
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(SchedulerMaskTest, ARowStandsInAPlanOnceItsMaskIsKnownAndOthersGoOn) {
  const auto first = AnyMask(options_, 1), second = AnyMask(options_, 2);
  Add(1, first);
  Add(2, nullptr);
  const StepPlan one = *scheduler_->Plan({});
  ASSERT_EQ(one.rows.size(), 2u);
  EXPECT_EQ(one.logits[0].mask, first);
  EXPECT_EQ(one.logits[1].mask, nullptr);
  const StepPlan two = *scheduler_->Plan({});  // of the sequence without masks alone
  ASSERT_EQ(two.rows.size(), 1u);
  EXPECT_EQ(two.logits[0].mask, nullptr);
  Commit(one);
  const StepPlan three = *scheduler_->Plan({});
  EXPECT_EQ(three.rows.size(), 1u);
  scheduler_->SetMask(1, second);
  Commit(two);
  const StepPlan four = *scheduler_->Plan({});
  ASSERT_EQ(four.rows.size(), 2u);
  EXPECT_EQ(four.logits[0].mask, second);
  EXPECT_FALSE(four.rows[0].sampled_by.has_value());
  Commit(three);
  Commit(four);
}

class SchedulerLateMaskTest : public SchedulerMaskTest {
 protected:
  SchedulerLateMaskTest() {
    SchedulerOptions options = options_;
    options.late_masks = true;
    scheduler_ = *Scheduler::Create(options);
  }
};

TEST_F(SchedulerLateMaskTest, RowsStandInPlansBeforeTheirMasks) {
  const auto first = AnyMask(options_, 1), second = AnyMask(options_, 2),
             third = AnyMask(options_, 3);
  Add(1, first);
  const StepPlan one = *scheduler_->Plan({});
  EXPECT_EQ(one.logits[0].mask, first);
  EXPECT_EQ(one.logits[0].late_mask, nullptr);
  const StepPlan two = *scheduler_->Plan({});
  ASSERT_EQ(two.rows.size(), 1u);
  EXPECT_EQ(two.rows[0].sampled_by, one.id);
  EXPECT_EQ(two.logits[0].mask, nullptr);
  ASSERT_NE(two.logits[0].late_mask, nullptr);
  Commit(one);
  const StepPlan three = *scheduler_->Plan({});
  ASSERT_NE(three.logits[0].late_mask, nullptr);
  EXPECT_FALSE(two.logits[0].late_mask->is_set());
  scheduler_->SetMask(1, second);
  EXPECT_EQ(two.logits[0].late_mask->Wait(), second.get());
  EXPECT_FALSE(three.logits[0].late_mask->is_set());
  Commit(two);
  scheduler_->SetMask(1, third);
  EXPECT_EQ(three.logits[0].late_mask->Wait(), third.get());
  Commit(three);
}

// A sequence that ends leaves no step that waits for it, and what is sampled for it is dropped.
TEST_F(SchedulerLateMaskTest, AnEndSetsAllMasks) {
  Add(1, AnyMask(options_, 1));
  const StepPlan one = *scheduler_->Plan({});
  const StepPlan two = *scheduler_->Plan({});
  Commit(one);
  const StepPlan three = *scheduler_->Plan({});
  std::vector<TokenEvent> events;
  ASSERT_TRUE(scheduler_->Complete(1, {}, &events));
  for (const StepPlan* plan : {&two, &three}) {
    ASSERT_TRUE(plan->logits[0].late_mask->is_set());
    EXPECT_EQ(plan->logits[0].late_mask->Wait(), nullptr);
  }
  EXPECT_TRUE(Commit(two).empty());
  EXPECT_TRUE(Commit(three).empty());
  EXPECT_FALSE(scheduler_->HasWork());
}

// One whose masks take long waits for each for a while, and then no more.
TEST_F(SchedulerLateMaskTest, SlowMasksAreAwaited) {
  Add(1, AnyMask(options_, 1), 60);
  Commit(*scheduler_->Plan({}));
  for (int i = 0; i < 3; ++i) scheduler_->AwaitMasks(1);  // the others change nothing
  int awaited = 0;
  while (!scheduler_->Plan({}).has_value()) {
    ++awaited;
    scheduler_->SetMask(1, AnyMask(options_, 2));
    const std::optional<StepPlan> plan = scheduler_->Plan({});
    ASSERT_TRUE(plan.has_value());
    ASSERT_NE(plan->logits[0].mask, nullptr);
    Commit(*plan);
  }
  EXPECT_EQ(awaited, 32);
}

TEST_F(SchedulerLateMaskTest, PreemptedOnesGoOnWithTheirMasks) {
  // 16 blocks of 4: the two do not fit to their ends.
  Add(1, AnyMask(options_, 1), 40);
  Add(2, AnyMask(options_, 1), 40);
  int tokens[3] = {};
  std::deque<StepPlan> plans;
  for (int step = 0; step < 400 && scheduler_->HasWork(); ++step) {
    while (std::optional<StepPlan> plan = scheduler_->Plan({})) plans.push_back(*std::move(plan));
    ASSERT_FALSE(plans.empty());
    for (const WantedLogits& wanted : plans.front().logits) {
      EXPECT_TRUE(wanted.mask != nullptr || wanted.late_mask->is_set());
    }
    for (const TokenEvent& event : Commit(plans.front())) {
      tokens[event.id] += event.sampled.size();
      if (!event.end) scheduler_->SetMask(event.id, AnyMask(options_, 1));
    }
    plans.pop_front();
  }
  EXPECT_EQ(tokens[1], 40);
  EXPECT_EQ(tokens[2], 40);
  EXPECT_GT(scheduler_->stats().preemptions, 0);
}

TEST_F(SchedulerMaskTest, NothingIsPlannedUntilTheMaskComes) {
  Add(1, AnyMask(options_, 1));
  Commit(*scheduler_->Plan({}));
  EXPECT_FALSE(scheduler_->Plan({}).has_value());
  EXPECT_TRUE(scheduler_->HasWork());
  scheduler_->SetMask(1, AnyMask(options_, 2));
  EXPECT_TRUE(scheduler_->Plan({}).has_value());
}

TEST_F(SchedulerMaskTest, ACompleteSequenceEnds) {
  Add(1, AnyMask(options_, 1));
  Commit(*scheduler_->Plan({}));
  std::vector<TokenEvent> events;
  ASSERT_TRUE(scheduler_->Complete(1, {}, &events));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].end->reason, EndReason::kComplete);
  EXPECT_TRUE(events[0].end->status.ok());
  EXPECT_EQ(events[0].end->generated_tokens, 1);
  EXPECT_FALSE(scheduler_->HasWork());
  EXPECT_FALSE(scheduler_->Complete(1, {}, &events));
  scheduler_->SetMask(1, AnyMask(options_, 1));  // no effect
}

TEST_F(SchedulerMaskTest, PreemptedOnesGoOnWithTheirMask) {
  // 16 blocks of 4: the two do not fit to their ends.
  Add(1, AnyMask(options_, 1), 40);
  Add(2, AnyMask(options_, 1), 40);
  int tokens[3] = {};
  for (int step = 0; step < 400 && scheduler_->HasWork(); ++step) {
    const std::optional<StepPlan> plan = scheduler_->Plan({});
    ASSERT_TRUE(plan.has_value());
    for (const WantedLogits& wanted : plan->logits) EXPECT_NE(wanted.mask, nullptr);
    for (const TokenEvent& event : Commit(*plan)) {
      tokens[event.id] += event.sampled.size();
      if (!event.end) scheduler_->SetMask(event.id, AnyMask(options_, 1));
    }
  }
  EXPECT_EQ(tokens[1], 40);
  EXPECT_EQ(tokens[2], 40);
  EXPECT_GT(scheduler_->stats().preemptions, 0);
}

}  // namespace
}  // namespace millrace
