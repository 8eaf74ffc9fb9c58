// Tests of the scheduler for an encoder: whole prompts, each of which ends in an embedding alone.
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/scheduler.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kSize = 3;

SchedulerOptions Options() {
  return {.limits = {.max_num_seqs = 4,
                     .max_num_batched_tokens = 16,
                     .max_model_len = 16,
                     .num_blocks = {32},
                     .state = StateLayout::OnePool(4),
                     .vocab_size = 100,
                     .embedding_size = kSize},
          .prefix_caching = false};
}

SequenceRequest Text(SequenceId id, size_t tokens) {
  SequenceRequest request;
  request.id = id;
  request.prompt.assign(tokens, 7);
  request.sampling = std::make_shared<const SamplingParams>();
  return request;
}

std::unique_ptr<Scheduler> Make() { return *Scheduler::Create(Options()); }

std::vector<int32_t> Lengths(const StepPlan& plan) {
  std::vector<int32_t> lengths;
  for (const StepRow& row : plan.rows) {
    EXPECT_EQ(row.start, 0);
    EXPECT_EQ(row.logits.size(), 0);
    lengths.push_back(row.num_tokens);
  }
  return lengths;
}

// An embedding of each row.
StepResult Answer(const StepPlan& plan) {
  StepResult result{.id = plan.id};
  for (const StepRow& row : plan.rows) {
    const auto begin = static_cast<int32_t>(result.embeddings.size());
    result.embeddings.resize(result.embeddings.size() + kSize);
    result.rows.push_back({.slot = row.slot, .embedding = {begin, begin + kSize}});
  }
  return result;
}

// A decoder's texts are computed in parts, beside others, and only the last part ends one.
TEST(SchedulerEncoderTest, PlansPartsWhereNoTokenSeesLaterOnes) {
  SchedulerOptions options = Options();
  options.limits.embeds_parts = true;
  options.limits.max_num_batched_tokens = 8;
  const auto scheduler = *Scheduler::Create(options);
  ASSERT_TRUE(scheduler->Add(Text(1, 11)).ok());
  ASSERT_TRUE(scheduler->Add(Text(2, 3)).ok());
  std::vector<TokenEvent> events;
  const StepPlan first = *scheduler->Plan({});
  EXPECT_TRUE(ValidatePlan(first, options.limits).ok());
  EXPECT_EQ(first.rows.size(), 1u);
  EXPECT_EQ(first.rows[0].num_tokens, 8);
  ASSERT_TRUE(scheduler->Commit(Answer(first), {}, &events).ok());
  EXPECT_TRUE(events.empty());
  const StepPlan second = *scheduler->Plan({});
  EXPECT_TRUE(ValidatePlan(second, options.limits).ok()) << ValidatePlan(second, options.limits);
  ASSERT_EQ(second.rows.size(), 2u);
  EXPECT_EQ(second.rows[0].start, 8);
  EXPECT_EQ(second.rows[0].num_tokens, 3);
  EXPECT_EQ(second.rows[0].logits.size(), 0);
  EXPECT_FALSE(ValidatePlan(second, Options().limits).ok()) << "an encoder takes no parts";
  ASSERT_TRUE(scheduler->Commit(Answer(second), {}, &events).ok());
  ASSERT_EQ(events.size(), 2u);
  for (const TokenEvent& event : events) {
    EXPECT_TRUE(event.end.has_value());
    EXPECT_EQ(event.embedding.size(), kSize);
  }
}

TEST(SchedulerEncoderTest, FindsBeginningsInTheCacheWhereNoTokenSeesLaterOnes) {
  SchedulerOptions options = Options();
  options.limits.embeds_parts = true;
  options.prefix_caching = true;
  const auto scheduler = *Scheduler::Create(options);
  std::vector<TokenEvent> events;
  for (const SequenceId id : {1, 2}) {
    SequenceRequest text = Text(id, 11);
    text.prompt_hashes = HashPrompt(CacheRoot({"root"}), text.prompt, 4);
    ASSERT_TRUE(scheduler->Add(std::move(text)).ok());
    const StepPlan plan = *scheduler->Plan({});
    EXPECT_EQ(plan.rows[0].start, id == 1 ? 0 : 8);
    EXPECT_EQ(plan.rows[0].num_tokens, id == 1 ? 11 : 3);
    ASSERT_TRUE(scheduler->Commit(Answer(plan), {}, &events).ok());
  }
  EXPECT_EQ(events[1].end->cached_tokens, 8);
}

TEST(SchedulerEncoderTest, PlansTextsWholeAndNoneOvertakes) {
  const auto scheduler = Make();
  for (const auto& [id, tokens] : {std::pair{1, 5}, {2, 6}, {3, 7}, {4, 1}}) {
    ASSERT_TRUE(
        scheduler->Add(Text(static_cast<SequenceId>(id), static_cast<size_t>(tokens))).ok());
  }
  const StepPlan first = *scheduler->Plan({});
  EXPECT_EQ(Lengths(first), (std::vector<int32_t>{5, 6})) << "the third does not fit any more";
  const StepPlan second = *scheduler->Plan({});
  EXPECT_EQ(Lengths(second), (std::vector<int32_t>{7, 1}));
  EXPECT_FALSE(scheduler->Plan({}).has_value());
  EXPECT_TRUE(ValidatePlan(first, Options().limits).ok());

  std::vector<TokenEvent> events;
  ASSERT_TRUE(scheduler->Commit(Answer(first), {}, &events).ok());
  ASSERT_TRUE(scheduler->Commit(Answer(second), {}, &events).ok());
  ASSERT_EQ(events.size(), 4u);
  for (const TokenEvent& event : events) {
    ASSERT_TRUE(event.end.has_value());
    EXPECT_EQ(event.end->reason, EndReason::kLength);
    EXPECT_EQ(event.end->generated_tokens, 0);
    EXPECT_EQ(event.embedding.size(), kSize);
  }
  EXPECT_EQ(events[1].embedding, (Range{kSize, 2 * kSize}));
  EXPECT_FALSE(scheduler->HasWork());
  EXPECT_EQ(scheduler->stats().blocks_free, 32);
}

TEST(SchedulerEncoderTest, ACancelledTextsBlocksAreFreeAndItsEmbeddingIsDropped) {
  const auto scheduler = Make();
  ASSERT_TRUE(scheduler->Add(Text(1, 16)).ok());
  const StepPlan plan = *scheduler->Plan({});
  std::vector<TokenEvent> events;
  EXPECT_TRUE(scheduler->Cancel(1, absl::CancelledError("gone"), {}, &events));
  EXPECT_EQ(scheduler->stats().blocks_free, 32);
  ASSERT_TRUE(scheduler->Commit(Answer(plan), {}, &events).ok());
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].end->reason, EndReason::kCancelled);
}

TEST(SchedulerEncoderTest, RefusesAnAnswerWithoutItsEmbedding) {
  const auto scheduler = Make();
  ASSERT_TRUE(scheduler->Add(Text(1, 4)).ok());
  const StepPlan plan = *scheduler->Plan({});
  StepResult result = Answer(plan);
  result.rows[0].embedding = {};
  std::vector<TokenEvent> events;
  EXPECT_EQ(scheduler->Commit(result, {}, &events).message(),
            "result of step 1, row 0: embedding of 0 numbers, expected 3");
}

TEST(SchedulerEncoderTest, RefusesLimitsThatCannotHoldAWholeTextAndPrefixes) {
  SchedulerOptions options = Options();
  options.limits.max_num_batched_tokens = 15;
  EXPECT_THAT(std::string(Scheduler::Create(options).status().message()),
              HasSubstr("max_num_batched_tokens: is 15, must be at least max_model_len, 16"));
  options = Options();
  options.prefix_caching = true;
  EXPECT_THAT(std::string(Scheduler::Create(options).status().message()),
              HasSubstr("prefix_caching: is true"));
}

TEST(SchedulerEncoderTest, ATextThatIsTooLongCanNeverFit) {
  EXPECT_EQ(CheckFits(17, 0, Options().limits).message(),
            "the prompt has 17 tokens, but the model's length is 16");
}

}  // namespace
}  // namespace millrace
