// Sequences whose tokens are sampled under masks.
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
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

SampleMask MaskOf(const SchedulerOptions& options, Token token) {
  SampleMask mask((options.limits.vocab_size + 31) / 32);
  mask[token / 32] = 1U << (token % 32);
  return mask;
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

  // Returns the mask that has come for the only row of a step since the step was planned, or null.
  std::shared_ptr<const SampleMask> LateMaskOf(const StepPlan& plan) {
    EXPECT_TRUE(plan.logits[0].late_mask);
    for (LateMask& late : scheduler_->TakeLateMasks()) {
      EXPECT_EQ(late.logits, 0);
      EXPECT_TRUE(late_masks_.emplace(late.step, std::move(late.mask)).second) << "given twice";
    }
    const auto it = late_masks_.find(plan.id);
    return it == late_masks_.end() ? nullptr : it->second;
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
  std::map<StepId, std::shared_ptr<const SampleMask>> late_masks_;
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

  // Adds sequence 1 and commits its first token. Returns the next two steps, which are in flight
  // and await their masks.
  std::array<StepPlan, 2> PlanTwoWithoutMasks() {
    Add(1, AnyMask(options_, 1));
    const StepPlan one = *scheduler_->Plan({});
    StepPlan two = *scheduler_->Plan({});
    Commit(one);
    return {std::move(two), *scheduler_->Plan({})};
  }
};

TEST_F(SchedulerLateMaskTest, RowsStandInPlansBeforeTheirMasks) {
  const auto first = AnyMask(options_, 1), second = AnyMask(options_, 2),
             third = AnyMask(options_, 3);
  Add(1, first);
  const StepPlan one = *scheduler_->Plan({});
  EXPECT_EQ(one.logits[0].mask, first);
  EXPECT_FALSE(one.logits[0].late_mask);
  const StepPlan two = *scheduler_->Plan({});
  ASSERT_EQ(two.rows.size(), 1u);
  EXPECT_EQ(two.rows[0].sampled_by, one.id);
  EXPECT_EQ(two.logits[0].mask, nullptr);
  EXPECT_TRUE(two.logits[0].late_mask);
  Commit(one);
  const StepPlan three = *scheduler_->Plan({});
  EXPECT_EQ(LateMaskOf(two), nullptr);
  scheduler_->SetMask(1, second);
  EXPECT_EQ(LateMaskOf(two), second);
  EXPECT_EQ(LateMaskOf(three), nullptr);
  Commit(two);
  scheduler_->SetMask(1, third);
  EXPECT_EQ(LateMaskOf(three), third);
  Commit(three);
}

// Each mask names its place: those of a step with several rows may come one by one.
TEST_F(SchedulerLateMaskTest, MasksNameTheirRows) {
  for (const SequenceId id : {1, 2}) Add(id, AnyMask(options_, 1));
  const StepPlan one = *scheduler_->Plan({});
  const StepPlan two = *scheduler_->Plan({});
  ASSERT_EQ(two.logits.size(), 2u);
  Commit(one);
  for (const SequenceId id : {2, 1}) {
    scheduler_->SetMask(id, AnyMask(options_, 1 + id));
    const std::vector<LateMask> late = scheduler_->TakeLateMasks();
    ASSERT_EQ(late.size(), 1u);
    EXPECT_EQ(late[0].step, two.id);
    EXPECT_EQ(late[0].logits, static_cast<int32_t>(id) - 1);
    EXPECT_EQ(*late[0].mask, *AnyMask(options_, 1 + id));
  }
  Commit(two);
}

// A sequence that ends leaves no step that waits for it, and what is sampled for it is dropped.
TEST_F(SchedulerLateMaskTest, AnEndSetsAllMasks) {
  const auto [two, three] = PlanTwoWithoutMasks();
  std::vector<TokenEvent> events;
  ASSERT_TRUE(scheduler_->Complete(1, {}, &events));
  for (const StepPlan* plan : {&two, &three}) {
    ASSERT_NE(LateMaskOf(*plan), nullptr);
    EXPECT_EQ(*LateMaskOf(*plan), *AnyMask(options_, ~0U));
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

// Rows in flight sample the first forced tokens, and the next row brings the others.
TEST_F(SchedulerLateMaskTest, ForcedTokensNeedNoStepsOfTheirOwn) {
  const auto [two, three] = PlanTwoWithoutMasks();
  std::vector<TokenEvent> events;
  scheduler_->Force(1, {5, 5, 8, 9}, {}, &events);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].sampled, (Range{0, 4}));
  EXPECT_FALSE(events[0].end.has_value());
  for (const StepPlan* plan : {&two, &three}) {
    ASSERT_NE(LateMaskOf(*plan), nullptr);
    EXPECT_EQ(*LateMaskOf(*plan), MaskOf(options_, 5));
  }
  scheduler_->SetMask(1, AnyMask(options_, 3));
  EXPECT_TRUE(Commit(two).empty());
  const StepPlan four = *scheduler_->Plan({});
  ASSERT_EQ(four.rows.size(), 1u);
  EXPECT_EQ(four.rows[0].start, 5);  // behind the prompt, and what steps one and two sampled
  EXPECT_EQ(four.tokens, (std::vector<Token>{5, 8, 9}));
  EXPECT_EQ(*four.logits[0].mask, *AnyMask(options_, 3));
  EXPECT_TRUE(Commit(three).empty());
  EXPECT_EQ(Commit(four)[0].sampled.size(), 1);
  EXPECT_EQ(scheduler_->stats().forced_tokens, 4);
}

TEST_F(SchedulerLateMaskTest, FewerForcedTokensThanRowsInFlight) {
  const auto [two, three] = PlanTwoWithoutMasks();
  std::vector<TokenEvent> events;
  scheduler_->Force(1, {5}, {}, &events);
  scheduler_->SetMask(1, AnyMask(options_, 3));
  ASSERT_NE(LateMaskOf(two), nullptr);
  EXPECT_EQ(*LateMaskOf(two), MaskOf(options_, 5));
  ASSERT_NE(LateMaskOf(three), nullptr);
  EXPECT_EQ(*LateMaskOf(three), *AnyMask(options_, 3));
  EXPECT_TRUE(Commit(two).empty());
  EXPECT_EQ(Commit(three)[0].sampled.size(), 1);
}

TEST_F(SchedulerLateMaskTest, PreemptedOnesGoOnWithTheirMasks) {
  // 16 blocks of 4: the two do not fit to their ends.
  Add(1, AnyMask(options_, 1), 40);
  Add(2, AnyMask(options_, 1), 40);
  int tokens[3] = {};
  std::deque<StepPlan> plans;
  std::set<std::pair<StepId, int32_t>> come;  // late masks
  for (int step = 0; step < 400 && scheduler_->HasWork(); ++step) {
    while (std::optional<StepPlan> plan = scheduler_->Plan({})) plans.push_back(*std::move(plan));
    ASSERT_FALSE(plans.empty());
    for (const LateMask& late : scheduler_->TakeLateMasks()) come.emplace(late.step, late.logits);
    for (int32_t i = 0; i < static_cast<int32_t>(plans.front().logits.size()); ++i) {
      EXPECT_NE(plans.front().logits[i].mask != nullptr, come.contains({plans.front().id, i}));
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

TEST_F(SchedulerMaskTest, ForcedTokensAreInputsOfTheNextRow) {
  Add(1, AnyMask(options_, 1));
  Commit(*scheduler_->Plan({}));
  std::vector<TokenEvent> events;
  scheduler_->Force(1, {6, 7}, {}, &events);
  scheduler_->SetMask(1, AnyMask(options_, 2));
  const StepPlan plan = *scheduler_->Plan({});
  EXPECT_EQ(plan.tokens, (std::vector<Token>{5, 6, 7}));
  ASSERT_EQ(plan.logits.size(), 1u);
  EXPECT_EQ(plan.logits[0].offset, 2);
  EXPECT_EQ(*plan.logits[0].mask, *AnyMask(options_, 2));
  EXPECT_EQ(Commit(plan)[0].sampled.size(), 1);
}

// Two rows of five tokens do not fit a step of eight: the rest follows in the next.
TEST_F(SchedulerMaskTest, ForcedTokensTakeOfTheBudgetAsPromptsDo) {
  SchedulerOptions options = options_;
  options.limits.max_num_batched_tokens = 8;
  scheduler_ = *Scheduler::Create(options);
  Add(1, AnyMask(options_, 1), 20);
  Add(2, AnyMask(options_, 1), 20);
  Commit(*scheduler_->Plan({}));
  std::vector<TokenEvent> events;
  for (const SequenceId id : {1, 2}) {
    scheduler_->Force(id, {6, 7, 8, 9}, {}, &events);
    scheduler_->SetMask(id, AnyMask(options_, 2));
  }
  const StepPlan first = *scheduler_->Plan({});
  ASSERT_EQ(first.rows.size(), 2u);
  EXPECT_EQ(first.rows[0].num_tokens, 5);
  EXPECT_EQ(first.rows[1].num_tokens, 3);
  EXPECT_EQ(first.logits.size(), 1u);
  Commit(first);
  const StepPlan second = *scheduler_->Plan({});
  EXPECT_EQ(second.tokens, (std::vector<Token>{8, 9}));
  Commit(second);
}

TEST_F(SchedulerMaskTest, AForcedTokenMayBeTheLast) {
  Add(1, AnyMask(options_, 1), 3);
  Commit(*scheduler_->Plan({}));
  std::vector<TokenEvent> events;
  scheduler_->Force(1, {6, 7, 8}, {}, &events);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].sampled, (Range{0, 2}));
  EXPECT_EQ(events[0].end->reason, EndReason::kLength);
  EXPECT_EQ(events[0].end->generated_tokens, 3);
  scheduler_->Force(1, {6}, {}, &events);  // no effect
  EXPECT_EQ(events.size(), 1u);
  EXPECT_FALSE(scheduler_->HasWork());
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
