// How sequences end before their time, and the edges of Scheduler's interface.
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/scheduler.h"
#include "scheduler/scheduler_script_test_util.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// ---- Cancellation ----

TEST(SchedulerLifeTest, CancelsAtEveryStage) {
  EXPECT_TRANSCRIPT(SmallOptions(2, 4, 8), R"(
add A prompt=6 max=9       | ok
cancel A                   | A cancelled (6 in, 0 cached, 0 out)
cancel A                   | no such sequence
while prefilling, with a chunk in flight:
add A prompt=6 max=9       | ok
plan                       | +A[0,4)
cancel A                   | A cancelled (6 in, 0 cached, 0 out)
stats                      | running 0 waiting 0, blocks held 0 cached 0 free 8, hits 0/6, preempted 0, prefill 4 decode 0
commit                     | no events
while decoding, with two steps in flight; its slot and its blocks go to the next step:
add A prompt=4 max=9       | ok
add B prompt=1 max=2       | ok
plan                       | +A[0,4)*
plan                       | A[4,5)<2*, +B[0,1)*
cancel A                   | A cancelled (4 in, 0 cached, 0 out)
cancel B                   | B cancelled (1 in, 0 cached, 0 out)
add C prompt=32 max=1      | ok
plan                       | nothing
commit                     | no events
plan                       | +C[0,4)
commit                     | no events
commit                     | no events
cancel C                   | C cancelled (32 in, 0 cached, 0 out)
stats                      | running 0 waiting 0, blocks held 0 cached 1 free 7, hits 0/43, preempted 0, prefill 13 decode 1
)");
  EXPECT_TRANSCRIPT(SmallOptions(4, 16, 4, false), R"(
while preempted, with a token in flight:
add A prompt=4 max=16      | ok
add B prompt=4 max=16      | ok
run 4                      | A[6,7)*, B[6,7)* -> A +1, B +1
plan                       | A[7,8)*, B[7,8)*
plan                       | A[8,9)<5*
cancel B                   | B cancelled (4 in, 0 cached, 4 out)
commit                     | A +1
commit                     | A +1
stats                      | running 1 waiting 0, blocks held 3 cached 0 free 1, hits 0/0, preempted 1, prefill 8 decode 9
)");
}

// ---- Failures ----

TEST(SchedulerLifeTest, ARowFailsAlone) {
  EXPECT_TRANSCRIPT(SmallOptions(2, 8, 8), R"(
add A prompt=3 max=4       | ok
add B prompt=3 max=4       | ok
plan                       | +A[0,3)*, +B[0,3)*
plan                       | A[3,4)<1*, B[3,4)<1*
commit fail=A              | A failed (3 in, 0 cached, 0 out), B +1
commit                     | B +1
step                       | B[4,5)* -> B +1
)");
}

TEST(SchedulerLifeTest, WhatAFailedSequenceComputedIsNotFoundAgain) {
  EXPECT_TRANSCRIPT(SmallOptions(2, 8, 8), R"(
add A prompt=12 same=12 max=4 | ok
step                       | +A[0,8) -> no events
stats                      | running 1 waiting 0, blocks held 2 cached 0 free 6, hits 0/12, preempted 0, prefill 8 decode 0
step fail=A                | A[8,12)* -> A failed (12 in, 0 cached, 0 out)
stats                      | running 0 waiting 0, blocks held 0 cached 0 free 8, hits 0/12, preempted 0, prefill 12 decode 0
add B prompt=12 same=12 max=1 | ok
step                       | +B[0,8) -> no events
)");
}

TEST(SchedulerLifeTest, AFailedStepEndsAllThatHadARowInIt) {
  EXPECT_TRANSCRIPT(SmallOptions(2, 8, 8), R"(
add A prompt=3 max=4       | ok
add B prompt=3 max=4       | ok
plan                       | +A[0,3)*, +B[0,3)*
add C prompt=3 max=1       | ok
commit fail=step           | A failed (3 in, 0 cached, 0 out), B failed (3 in, 0 cached, 0 out)
step                       | +C[0,3)* -> C +1 length (3 in, 0 cached, 1 out)
)");
}

// ---- The edges of the interface ----

TEST(SchedulerLifeTest, RefusesWhatItCannotHold) {
  const std::pair<const char*, const char*> cases[] = {
      {"prompt=64 max=1",
       "64 tokens and 1 more are asked for: together 65, but the model's length is 64"},
      {"prompt=64 max=0", "and 0 more need 16 blocks"},
      {"prompt=33 max=1", "need 9 blocks of the KV cache, but it has 8"},
      {"prompt=0 max=1", "prompt: is empty"},
      {"prompt=3 max=-1", "max_tokens: is -1, must be at least 0"},
  };
  for (const auto& [arguments, message] : cases) {
    EXPECT_THAT(RunScript(SmallOptions(2, 8, 8), std::string("add A ") + arguments + " |"),
                HasSubstr(message));
  }
}

std::string CreateError(SchedulerOptions options) {
  return std::string(Scheduler::Create(options).status().message());
}

TEST(SchedulerLifeTest, RefusesLimitsThatCannotWork) {
  EXPECT_EQ(CreateError(SmallOptions(8, 8, 1)), "");
  EXPECT_EQ(CreateError(SmallOptions(8, 7, 1)),
            "max_num_batched_tokens: is 7, must be at least max_num_seqs, 8");
  EXPECT_EQ(CreateError(SmallOptions(0, 8, 1)), "max_num_seqs: is 0, must be at least 1");
  EXPECT_EQ(CreateError(SmallOptions(8, 8, 0)), "num_blocks: is 0, must be at least 1");
}

SequenceRequest Request(SequenceId id, int32_t max_tokens) {
  SequenceRequest request{.id = id, .prompt = {1, 2, 3}};
  request.sampling = std::make_shared<SamplingParams>();
  request.stop.max_tokens = max_tokens;
  return request;
}

TEST(SchedulerLifeTest, RefusesWhatBreaksTheRequestsContract) {
  const std::unique_ptr<Scheduler> scheduler = *Scheduler::Create(SmallOptions(2, 8, 8));
  const auto error = [&](auto change) {
    SequenceRequest request = Request(1, 1);
    change(request);
    return std::string(scheduler->Add(std::move(request)).message());
  };
  EXPECT_EQ(error([](auto& r) { r.prompt[1] = 1000; }), "prompt: token 1000 is not in [0, 1000)");
  EXPECT_EQ(error([](auto& r) { r.prompt[1] = -1; }), "prompt: token -1 is not in [0, 1000)");
  EXPECT_EQ(error([](auto& r) { r.sampling = nullptr; }), "sampling: is missing");
  EXPECT_EQ(error([](auto& r) { r.score_prompt = true; }),
            "score_prompt: needs sampling.top_logprobs");
  EXPECT_EQ(error([](auto& r) { r.prompt.push_back(4); }),
            "prompt_hashes: has 0 blocks, the prompt 1");
  EXPECT_FALSE(scheduler->HasWork());
  EXPECT_EQ(error([](auto&) {}), "");
  EXPECT_EQ(error([](auto&) {}), "id: 1 is alive");
}

TEST(SchedulerLifeTest, RefusesAResultThatDoesNotAnswerThePlan) {
  const std::unique_ptr<Scheduler> scheduler = *Scheduler::Create(SmallOptions(2, 8, 8));
  std::vector<TokenEvent> events;
  const auto error = [&](const StepResult& result) {
    return std::string(scheduler->Commit(result, {}, &events).message());
  };
  EXPECT_EQ(error({.id = 1}), "a step result, but no step is in flight");
  ASSERT_TRUE(scheduler->Add(Request(1, 1)).ok());
  ASSERT_TRUE(scheduler->Plan({}).has_value());
  const std::vector<TokenResult> token = {{.token = 5}};
  EXPECT_EQ(error({.id = 2}), "result of step 2, expected 1");
  EXPECT_EQ(error({.id = 1}), "result of step 1 has 0 rows, its plan 1");
  const std::string wrong = "result of step 1, row 0: slot ";
  EXPECT_EQ(error({.id = 1, .rows = {{.slot = 1, .tokens = {0, 1}}}, .tokens = token}),
            wrong + "1 with 1 tokens, expected slot 0 with 1");
  EXPECT_EQ(error({.id = 1, .rows = {{.slot = 0}}, .tokens = token}),
            wrong + "0 with 0 tokens, expected slot 0 with 1");
  EXPECT_EQ(error({.id = 1, .rows = {{.slot = 0, .tokens = {1, 2}}}, .tokens = token}),
            wrong + "0 with 1 tokens, expected slot 0 with 1");
  EXPECT_TRUE(events.empty());
  EXPECT_EQ(error({.id = 1, .rows = {{.slot = 0, .tokens = {0, 1}}}, .tokens = token}), "");
  EXPECT_EQ(events.size(), 1u);
  EXPECT_FALSE(scheduler->HasWork());
}

TEST(SchedulerLifeTest, TellsWhenASequenceWasScheduledAndBegan) {
  const auto at = [](int seconds) { return SteadyTime(std::chrono::seconds(seconds)); };
  const std::unique_ptr<Scheduler> scheduler = *Scheduler::Create(SmallOptions(2, 8, 8));
  SequenceRequest request = Request(1, 2);
  request.arrival = at(10);
  ASSERT_TRUE(scheduler->Add(std::move(request)).ok());
  ASSERT_TRUE(scheduler->Plan(at(12)).has_value());
  ASSERT_TRUE(scheduler->Plan(at(13)).has_value());
  std::vector<TokenEvent> events;
  StepResult result{.id = 1, .rows = {{.slot = 0, .tokens = {0, 1}}}, .tokens = {{.token = 5}}};
  ASSERT_TRUE(scheduler->Commit(result, at(15), &events).ok());
  result.id = 2;
  ASSERT_TRUE(scheduler->Commit(result, at(20), &events).ok());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_FALSE(events[0].end.has_value());
  ASSERT_TRUE(events[1].end.has_value());
  EXPECT_EQ(events[1].end->arrival, at(10));
  EXPECT_EQ(events[1].end->first_scheduled, at(12));
  EXPECT_EQ(events[1].end->first_token, at(15));
  EXPECT_EQ(events[1].end->ended, at(20));
}

TEST(SchedulerLifeTest, CancelAllEndsTheRunningAndTheWaiting) {
  const std::unique_ptr<Scheduler> scheduler = *Scheduler::Create(SmallOptions(1, 8, 8));
  for (SequenceId id = 1; id <= 3; ++id) ASSERT_TRUE(scheduler->Add(Request(id, 4)).ok());
  ASSERT_TRUE(scheduler->Plan({}).has_value());
  std::vector<TokenEvent> events;
  scheduler->CancelAll(absl::UnavailableError("draining"), {}, &events);
  ASSERT_EQ(events.size(), 3u);
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].id, i + 1);
    EXPECT_EQ(events[i].end->reason, EndReason::kCancelled);
    EXPECT_EQ(events[i].end->status, absl::UnavailableError("draining"));
    EXPECT_EQ(events[i].end->first_scheduled.has_value(), i == 0);
  }
  EXPECT_TRUE(scheduler->HasWork());  // the step in flight
  ASSERT_TRUE(scheduler->Commit({.id = 1, .status = absl::InternalError("")}, {}, &events).ok());
  EXPECT_EQ(events.size(), 3u);
  EXPECT_FALSE(scheduler->HasWork());
}

// The tokens of sequences that penalize go into a plan, whose memory for them is bounded.
TEST(SchedulerLifeTest, LongHistoriesStartOneAfterAnother) {
  EXPECT_TRANSCRIPT(SmallOptions(4, 128, 64, false), R"(
add A prompt=30 max=2 penalize  | ok
add B prompt=30 max=2 penalize  | ok
add C prompt=30 max=2 penalize  | ok
add D prompt=3 max=2            | ok
plan                            | +A[0,30)*, +B[0,30)*
plan                            | A[30,31)<1*, B[30,31)<1*, +C[0,30)*, +D[0,3)*
)");
}

}  // namespace
}  // namespace millrace
