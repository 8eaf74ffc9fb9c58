// How an engine ends its requests, whatever happens to them.
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "engine/engine_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// Says so much that only what the test does ends it.
std::shared_ptr<Script> Talks() { return std::make_shared<Script>(std::string(1 << 16, 'x')); }

std::shared_ptr<Script> TalksOnHold() {
  auto script = Talks();
  script->Hold();
  return script;
}

// Lets steps finish until `done`: requests come in at their own pace, and a batch is only formed
// when a step is planned.
bool StepUntil(Script& script, const std::function<bool()>& done) {
  return Eventually([&] {
    if (done()) return true;
    script.TryFinish();
    return false;
  });
}

bool IsIdle(const EngineImpl& engine) {
  const LoopGauges& gauges = engine.gauges();
  return gauges.running == 0 && gauges.waiting == 0 && gauges.blocks_held == 0;
}

// ---- Cancellation ----

TEST(EngineCancelTest, AWaitingRequestEndsAtOnce) {
  auto script = TalksOnHold();
  auto engine = MakeEngine(script);
  std::vector<std::unique_ptr<Reader>> running;
  for (int i = 0; i < 4; ++i) {
    running.push_back(std::make_unique<Reader>(engine.get(), TextRequest("abc")));
  }
  ASSERT_TRUE(StepUntil(*script, [&] { return engine->gauges().running == 4; }));
  Reader waiting(engine.get(), TextRequest("abc"));
  ASSERT_TRUE(StepUntil(*script, [&] { return engine->gauges().waiting == 1; }));
  waiting.stream().Cancel(CancelReason::kClientGone);
  const Finish& finish = waiting.ReadAll();
  EXPECT_EQ(finish.reason, FinishReason::kCancelled);
  EXPECT_EQ(finish.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(finish.usage.prompt_tokens, 3);
  EXPECT_EQ(finish.usage.completion_tokens, 0);
  script->Release();
}

TEST(EngineCancelTest, ARunningRequestLeavesItsBlocksAtOnce) {
  // The prompt takes three steps: ended within prefill, and within decode, two steps being in
  // flight.
  for (const int steps_done : {0, 1, 5}) {
    auto script = TalksOnHold();
    auto engine = MakeEngine(script);
    Reader reader(engine.get(), TextRequest(std::string(150, 'p')));
    for (int i = 0; i < steps_done; ++i) script->Finish();
    ASSERT_TRUE(Eventually([&] { return engine->gauges().blocks_held > 0; }));
    reader.Drop();
    EXPECT_TRUE(Eventually([&] { return IsIdle(*engine); })) << "after " << steps_done << " steps";
    EXPECT_TRUE(engine->WaitIdle(SteadyTime::max()));
    // The slots and blocks are good for others.
    script->Release();
    GenerateRequest next = TextRequest("abc");
    next.max_tokens = 3;
    Reader after(engine.get(), next);
    EXPECT_EQ(after.ReadAll().reason, FinishReason::kLength);
  }
}

TEST(EngineCancelTest, RequestsThatAreDroppedAtOnceWaitForNoStep) {
  auto script = TalksOnHold();
  auto engine = MakeEngine(script);
  for (int i = 0; i < 50; ++i) Reader(engine.get(), TextRequest("abc")).Drop();
  EXPECT_TRUE(engine->WaitIdle(Clock::Real().Now() + std::chrono::seconds(60)));
  EXPECT_TRUE(Eventually([&] { return IsIdle(*engine); }));
  script->Release();
}

TEST(EngineCancelTest, TheFinishComesOnceAndLast) {
  auto script = TalksOnHold();
  auto engine = MakeEngine(script);
  Reader reader(engine.get(), TextRequest("abc"));
  for (int i = 0; i < 3; ++i) script->Finish();
  reader.ReadTokens(3);
  reader.stream().Cancel(CancelReason::kClientGone);
  reader.stream().Cancel(CancelReason::kDrain);
  EXPECT_EQ(reader.ReadAll().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(reader.finish().usage.completion_tokens, static_cast<int>(reader.tokens().size()));
  reader.stream().Cancel(CancelReason::kClientGone);
  EXPECT_FALSE(reader.stream().Next().has_value());
  script->Release();
}

// ---- Slow readers ----

TEST(EngineSlowReaderTest, AFullBufferEndsTheRequest) {
  StepLimits limits = SmallLimits();
  limits.max_model_len = 1 << 14;
  limits.num_blocks = {1 << 10};
  auto engine = MakeEngine(Talks(), {}, limits);
  GenerateRequest request = TextRequest("abc");
  request.logprobs = 20;
  Reader slow(engine.get(), request);
  EXPECT_TRUE(engine->WaitIdle(SteadyTime::max()));  // nobody reads
  EXPECT_TRUE(Eventually([&] { return IsIdle(*engine); }));
  const Finish& finish = slow.ReadAll();
  EXPECT_EQ(finish.reason, FinishReason::kCancelled);
  EXPECT_THAT(std::string(finish.status.message()), HasSubstr("not read fast enough"));
  // The events before the end are a beginning of the answer, without a gap.
  EXPECT_GT(slow.tokens().size(), 100u);
  EXPECT_EQ(slow.text(), std::string(slow.tokens().size(), 'x'));
}

TEST(EngineSlowReaderTest, AReaderThatTakesNothingIsGivenUp) {
  ManualClock clock;
  EngineOptions options;
  options.clock = &clock;
  auto script = TalksOnHold();
  auto engine = MakeEngine(script, options);
  Reader reader(engine.get(), TextRequest("abc"));
  script->Finish();
  reader.ReadTokens(1);
  script->Finish();
  reader.WaitReady();
  clock.Advance(std::chrono::seconds(29));
  EXPECT_FALSE(engine->WaitIdle(Clock::Real().Now() + std::chrono::milliseconds(600)));
  clock.Advance(std::chrono::seconds(2));
  EXPECT_TRUE(engine->WaitIdle(SteadyTime::max()));
  EXPECT_THAT(std::string(reader.ReadAll().status.message()), HasSubstr("not read fast enough"));
  script->Release();
}

// ---- Deadlines ----

TEST(EngineDeadlineTest, ExpiredWorkIsNeverStarted) {
  auto script = Talks();
  auto engine = MakeEngine(script);
  GenerateRequest request = TextRequest("abc");
  request.deadline = absl::Now() - absl::Seconds(1);
  Reader reader(engine.get(), request);
  EXPECT_EQ(reader.ReadAll().status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(reader.finish().reason, FinishReason::kCancelled);
  EXPECT_EQ(script->num_submitted(), 0);
}

TEST(EngineDeadlineTest, AWaitingRequestExpiresWhileTheDeviceHangs) {
  auto script = TalksOnHold();
  StepLimits limits = SmallLimits();
  limits.max_num_seqs = 1;
  auto engine = MakeEngine(script, {}, limits);
  Reader running(engine.get(), TextRequest("abc"));
  ASSERT_TRUE(Eventually([&] { return engine->gauges().running == 1; }));
  GenerateRequest request = TextRequest("abc");
  request.deadline = absl::Now() + absl::Milliseconds(50);
  Reader waiting(engine.get(), request);
  EXPECT_EQ(waiting.ReadAll().status.code(), absl::StatusCode::kDeadlineExceeded);
  script->Release();
}

TEST(EngineDeadlineTest, ARunningRequestExpires) {
  auto script = TalksOnHold();
  auto engine = MakeEngine(script);
  GenerateRequest request = TextRequest("abc");
  request.deadline = absl::Now() + absl::Milliseconds(50);
  Reader reader(engine.get(), request);
  EXPECT_EQ(reader.ReadAll().status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Eventually([&] { return IsIdle(*engine); }));
  script->Release();
}

// gRPC ends a call at its deadline as it does when the client goes, maybe before the loop looks.
TEST(EngineDeadlineTest, AClientThatGoesAtItsDeadlineIsLateAndAnEarlierOneIsGone) {
  auto script = TalksOnHold();
  ManualClock clock;
  EngineOptions options;
  options.clock = &clock;
  auto engine = MakeEngine(script, options);
  GenerateRequest request = TextRequest("abc");
  request.deadline = absl::Now() + absl::Hours(1);
  Reader early(engine.get(), request);
  early.stream().Cancel(CancelReason::kClientGone);
  EXPECT_EQ(early.ReadAll().status.code(), absl::StatusCode::kCancelled);
  Reader late(engine.get(), request);
  clock.Advance(std::chrono::hours(1) - std::chrono::milliseconds(5));
  late.stream().Cancel(CancelReason::kClientGone);
  EXPECT_EQ(late.ReadAll().status.code(), absl::StatusCode::kDeadlineExceeded);
  script->Release();
}

TEST(EngineDeadlineTest, ItHoldsWhileTheTextPoolIsBusy) {
  EngineOptions options;
  ASSERT_EQ(options.text_threads, 2);
  auto engine = MakeEngine(Talks(), options);
  std::promise<void> open;
  std::shared_future<void> opened = open.get_future().share();
  std::promise<void> entered[2];
  for (int i = 0; i < 2; ++i) {
    engine->Tokenize({.prompt = "abc"}, [&entered, opened, i](const auto&) {
      entered[i].set_value();
      opened.wait();
    });
    entered[i].get_future().wait();
  }
  GenerateRequest request = TextRequest("abc");
  request.n = 2;
  std::vector<Reader> choices = Reader::OfChoices(engine.get(), request);
  choices[0].stream().Cancel(CancelReason::kClientGone);
  request.n = 1;
  Reader unwanted(engine.get(), request);
  unwanted.stream().Cancel(CancelReason::kClientGone);
  EXPECT_EQ(unwanted.ReadAll().status.code(), absl::StatusCode::kCancelled);
  request.deadline = absl::Now() + absl::Milliseconds(20);
  Reader late(engine.get(), request);
  EXPECT_EQ(late.ReadAll().status.code(), absl::StatusCode::kDeadlineExceeded);
  choices[0].Drain();
  EXPECT_TRUE(choices[0].events().empty()) << "the other choice still needs the prompt";
  open.set_value();
  EXPECT_EQ(choices[0].ReadAll().status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(choices[1].ReadAll().status.ok());
}

// ---- Admission ----

TEST(EngineDoorTest, AFullQueueRefusesAtOnce) {
  auto script = TalksOnHold();
  EngineOptions options;
  options.max_waiting = 2;
  auto engine = MakeEngine(script, options);
  std::vector<std::unique_ptr<Reader>> accepted;
  const auto accept = [&] {
    accepted.push_back(std::make_unique<Reader>(engine.get(), TextRequest("abc")));
  };
  for (int i = 0; i < 4; ++i) accept();
  ASSERT_TRUE(StepUntil(*script, [&] { return engine->gauges().running == 4; }));
  for (int i = 0; i < 2; ++i) accept();
  ASSERT_TRUE(StepUntil(*script, [&] { return engine->gauges().waiting == 2; }));

  Reader refused(engine.get(), TextRequest("abc"));
  refused.Drain();  // there without waiting
  ASSERT_EQ(refused.events().size(), 1u);
  EXPECT_EQ(refused.finish().reason, FinishReason::kError);
  EXPECT_EQ(refused.finish().status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryAfter(refused.finish().status).has_value());

  accepted.front()->Drop();
  EXPECT_TRUE(Eventually([&] {
    Reader next(engine.get(), TextRequest("abc"));
    next.Drain();
    return next.events().empty();  // accepted
  }));
  script->Release();
}

TEST(EngineDoorTest, ABurstThatFitsTheBatchIsAccepted) {
  auto script = TalksOnHold();
  EngineOptions options;
  options.max_waiting = 1;
  auto engine = MakeEngine(script, options);
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 5; ++i) {
    GenerateRequest request = TextRequest("abc");
    request.max_tokens = 2;
    readers.push_back(std::make_unique<Reader>(engine.get(), request));
  }
  script->Release();
  for (const auto& reader : readers) EXPECT_EQ(reader->ReadAll().reason, FinishReason::kLength);
}

// ---- Drain ----

TEST(EngineDrainTest, WhatWasAcceptedFinishesAndNewWorkIsRefused) {
  auto script = TalksOnHold();
  auto engine = MakeEngine(script);
  std::vector<std::unique_ptr<Reader>> accepted;
  for (int i = 0; i < 6; ++i) {
    GenerateRequest request = TextRequest("abc");
    request.max_tokens = 20;
    accepted.push_back(std::make_unique<Reader>(engine.get(), request));
  }
  ASSERT_TRUE(StepUntil(*script, [&] { return engine->gauges().waiting == 2; }));
  engine->BeginDrain();
  Reader refused(engine.get(), TextRequest("abc"));
  EXPECT_EQ(refused.ReadAll().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(RetryAfter(refused.finish().status).has_value());
  EXPECT_FALSE(engine->WaitIdle(Clock::Real().Now()));
  script->Release();
  EXPECT_TRUE(engine->WaitIdle(SteadyTime::max()));
  for (const auto& reader : accepted) {
    EXPECT_EQ(reader->ReadAll().reason, FinishReason::kLength);
    EXPECT_EQ(reader->tokens().size(), 20u);
  }
}

TEST(EngineDrainTest, WhatIsLeftIsCancelledEvenIfTheDeviceHangs) {
  auto script = TalksOnHold();
  auto engine = MakeEngine(script);
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 6; ++i) {
    readers.push_back(std::make_unique<Reader>(engine.get(), TextRequest("abc")));
  }
  engine->BeginDrain();
  engine->CancelAll(CancelReason::kDrain);
  EXPECT_TRUE(engine->WaitIdle(SteadyTime::max()));
  for (const auto& reader : readers) {
    EXPECT_EQ(reader->ReadAll().reason, FinishReason::kCancelled);
    EXPECT_EQ(reader->finish().status.code(), absl::StatusCode::kUnavailable);
  }
  script->Release();
}

// ---- The device ----

TEST(EngineFailureTest, EveryRequestGetsARetriableEnd) {
  auto script = TalksOnHold();
  EngineOptions options;
  std::atomic<int> failures = 0;
  options.on_failure = [&] { ++failures; };
  auto engine = MakeEngine(script, options);
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 6; ++i) {
    readers.push_back(std::make_unique<Reader>(engine.get(), TextRequest("abc")));
  }
  ASSERT_TRUE(StepUntil(*script, [&] { return engine->gauges().waiting == 2; }));
  script->FailDevice();
  script->Finish();
  for (const auto& reader : readers) {
    EXPECT_EQ(reader->ReadAll().reason, FinishReason::kError);
    EXPECT_EQ(reader->finish().status.code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(RetryAfter(reader->finish().status).has_value());
  }
  EXPECT_TRUE(Eventually([&] { return failures == 1; }));
  EXPECT_EQ(engine->health(), Health::kFailed);
  Reader refused(engine.get(), TextRequest("abc"));
  EXPECT_EQ(refused.ReadAll().status.code(), absl::StatusCode::kUnavailable);
  script->Release();
}

TEST(EngineStallTest, HealthGoesAndComesWithTheSteps) {
  ManualClock clock;
  EngineOptions options;
  options.clock = &clock;
  options.stall_timeout = std::chrono::seconds(10);
  options.read_timeout = std::chrono::seconds(9);
  auto script = TalksOnHold();
  auto engine = MakeEngine(script, options);
  const auto requests = [&] { return engine->gauges().running + engine->gauges().waiting; };

  // An idle engine does not stall, and is not thought to when work comes after a long rest.
  clock.Advance(std::chrono::hours(1));
  Reader slow(engine.get(), TextRequest("abc"));
  script->Finish();
  slow.WaitReady();
  Reader reader(engine.get(), TextRequest("abc"));
  ASSERT_TRUE(Eventually([&] { return requests() == 2; }));
  clock.Advance(std::chrono::seconds(9));
  // The watchdog looks at the device before it ends what is not read.
  ASSERT_TRUE(Eventually([&] { return requests() == 1; }));
  EXPECT_EQ(engine->health(), Health::kServing);

  clock.Advance(std::chrono::seconds(2));
  EXPECT_TRUE(Eventually([&] { return engine->health() == Health::kStalled; }));
  script->Finish();
  EXPECT_TRUE(Eventually([&] { return engine->health() == Health::kServing; }));
  reader.Drop();
  script->Release();
}

// ---- All at once ----

TEST(EngineStressTest, ManyThreadsSendReadAndLeave) {
  auto engine = MakeEngine(std::make_shared<Script>("some words, then an end; and more"));
  constexpr int kThreads = 6;
  constexpr int kRequests = 60;
  std::atomic<int> finished = 0, dropped = 0;
  std::vector<std::thread> clients;
  for (int t = 0; t < kThreads; ++t) {
    clients.emplace_back([&, t] {
      std::minstd_rand random(t + 1);
      for (int i = 0; i < kRequests; ++i) {
        GenerateRequest request = TextRequest(std::string(1 + random() % 200, 'p'));
        request.priority = static_cast<int32_t>(random() % 3);
        if (random() % 2 == 0) request.stop = {" end"};
        if (random() % 4 == 0) request.logprobs = 1;
        if (random() % 8 == 0) request.deadline = absl::Now() + absl::Microseconds(random() % 2000);
        Reader reader(engine.get(), request);
        switch (random() % 4) {
          case 0:
            reader.Drop();
            ++dropped;
            continue;
          case 1:
            reader.stream().Cancel(CancelReason::kClientGone);
            break;
          default:
            break;
        }
        const Finish& finish = reader.ReadAll();
        EXPECT_FALSE(reader.stream().Next().has_value());
        EXPECT_EQ(finish.usage.completion_tokens, static_cast<int>(reader.tokens().size()));
        if (finish.reason == FinishReason::kStop && !request.stop.empty()) {
          EXPECT_EQ(reader.text(), "some words, then an");
        }
        ++finished;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(finished + dropped, kThreads * kRequests);
  EXPECT_TRUE(engine->WaitIdle(SteadyTime::max()));
  EXPECT_TRUE(Eventually([&] { return IsIdle(*engine); }));
}

GenerateRequest MaskedRequest() {
  GenerateRequest request = TextRequest("abc");
  request.grammar = {.kind = GrammarSpec::Kind::kRegex, .text = "[ab]{50}"};
  request.grammar_field = "response_format";
  return request;
}

// A step in flight gets its mask when it is made, and the mask of a sequence that has ended at
// once.
TEST(EngineMaskTest, StepsInFlightGetTheirMasks) {
  auto script = std::make_shared<Script>("abababab");
  script->TakeLateMasks();
  script->Hold();
  auto engine = MakeEngine(script);
  Reader reader(engine.get(), MaskedRequest());
  ASSERT_TRUE(Eventually([&] { return script->num_submitted() == 2; }));
  EXPECT_EQ(script->num_late_masks(), 0);
  script->Finish();
  ASSERT_TRUE(Eventually([&] { return script->num_submitted() == 3; }));
  EXPECT_TRUE(Eventually([&] { return script->num_late_masks() == 1; }));
  reader.stream().Cancel(CancelReason::kClientGone);
  EXPECT_TRUE(Eventually([&] { return script->num_late_masks() == 2; }));
  script->Release();
  reader.ReadAll();
}

// A step that is refused waits for no mask, but the one before it does.
TEST(EngineMaskTest, ARefusedStepTakesNoMasksFromThoseInFlight) {
  auto script = std::make_shared<Script>("abababab");
  script->TakeLateMasks();
  script->Hold();
  auto engine = MakeEngine(script);
  Reader reader(engine.get(), MaskedRequest());
  ASSERT_TRUE(Eventually([&] { return script->num_submitted() == 2; }));
  script->RefuseSteps();
  script->Finish();
  EXPECT_EQ(reader.ReadAll().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Eventually([&] { return script->num_late_masks() == 1; }));
}

}  // namespace
}  // namespace millrace
