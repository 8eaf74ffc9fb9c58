// Sequences whose tokens are sampled under masks.
#include <memory>
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
  const std::unique_ptr<Scheduler> scheduler_;
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
