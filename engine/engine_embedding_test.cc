// Tests of Embed: batches, their limits and their ends.
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/engine_test_util.h"
#include "engine/request/tenant.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::chrono::seconds kHang(60);

StepLimits EncoderLimits() {
  StepLimits limits = SmallLimits();
  limits.max_model_len = 64;
  limits.embedding_size = 2;
  return limits;
}

// The scripted embedding of a text of n tokens is (n, n + 1).
std::unique_ptr<EngineImpl> MakeEncoder(std::shared_ptr<Script> script,
                                        EngineOptions options = {}) {
  return MakeEngine(std::move(script), std::move(options), EncoderLimits());
}
std::unique_ptr<EngineImpl> MakeEncoder() { return MakeEncoder(std::make_shared<Script>("")); }

EmbedRequest Inputs(std::vector<Prompt> inputs) {
  EmbedRequest request;
  request.id = "embd-test";
  request.inputs = std::move(inputs);
  return request;
}

// An Embed call, made and waited for.
class Call {
 public:
  Call(Engine& engine, EmbedRequest request) {
    const auto result = std::make_shared<std::promise<absl::StatusOr<Embeddings>>>();
    result_ = result->get_future();
    give_up_ = engine.Embed(std::move(request), [result](absl::StatusOr<Embeddings> embeddings) {
      result->set_value(std::move(embeddings));
    });
  }
  // Once.
  absl::StatusOr<Embeddings> Get() { return result_.get(); }
  void GiveUp() { give_up_(); }

 private:
  std::future<absl::StatusOr<Embeddings>> result_;
  std::function<void()> give_up_;
};

absl::StatusOr<Embeddings> Embed(Engine& engine, EmbedRequest request) {
  return Call(engine, std::move(request)).Get();
}

constexpr char kRejections[] = "vllm:admission_rejections_total";
constexpr char kCancelled[] = "millrace_requests_cancelled_total";

std::vector<Prompt> Same(size_t count, const Prompt& input) {
  return std::vector<Prompt>(count, input);
}

TEST(EngineEmbeddingTest, AnswersWithTheEmbedding) {
  auto engine = MakeEncoder();
  EXPECT_EQ(engine->info().embedding_size, 2);
  const absl::StatusOr<Embeddings> embeddings = Embed(*engine, Inputs({"abc"}));
  ASSERT_TRUE(embeddings.ok()) << embeddings.status();
  EXPECT_EQ(embeddings->size, 2);
  EXPECT_THAT(embeddings->values, ElementsAre(3, 4));
  EXPECT_EQ(embeddings->prompt_tokens, 3);
}

TEST(EngineEmbeddingTest, AModelDoesWhatItIsFor) {
  auto encoder = MakeEncoder();
  Reader generate(encoder.get(), TextRequest("abc"));
  EXPECT_EQ(generate.ReadAll().status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(generate.finish().status.message()),
              HasSubstr("which does not support the Completions API"));
  auto decoder = MakeEngine(std::make_shared<Script>("hello"));
  const absl::Status refused = Embed(*decoder, Inputs({"abc"})).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("which does not support the Embeddings API"));
}

TEST(EngineEmbeddingTest, ATextThatIsTooLongIsCutIfThatIsAskedFor) {
  auto engine = MakeEncoder();
  EmbedRequest request = Inputs({std::string(100, 'x')});
  for (const auto& [asked, tokens] : {std::pair{-1, 64}, {64, 64}, {7, 7}}) {
    request.truncate_prompt_tokens = asked;
    const absl::StatusOr<Embeddings> cut = Embed(*engine, request);
    ASSERT_TRUE(cut.ok()) << cut.status();
    EXPECT_EQ(cut->prompt_tokens, tokens);
  }
  for (const int32_t asked : {0, -2, 65}) {
    request.truncate_prompt_tokens = asked;
    EXPECT_EQ(Embed(*engine, request).status().message(),
              absl::StrCat("truncate_prompt_tokens is ", asked, "; allowed: -1, and 1 to 64"));
  }
}

// The scripted embedding of "abc" with four numbers is (3, 4, 5, 6).
TEST(EngineEmbeddingTest, EmbeddingsAreCutWhereTheModelSaysSo) {
  StepLimits limits = EncoderLimits();
  limits.embedding_size = 4;
  const auto embed = [&](EmbeddingTraits traits, int32_t dimensions) {
    auto script = std::make_shared<Script>("");
    script->SetEmbedding(std::move(traits));
    auto engine = MakeEngine(std::move(script), EngineOptions(), limits);
    EmbedRequest request = Inputs({"abc", "abc"});
    request.dimensions = dimensions;
    return Embed(*engine, std::move(request));
  };
  const auto cut = embed({.normalized = false, .matryoshka = true, .sizes = {}}, 2);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->size, 2);
  EXPECT_THAT(cut->values, ElementsAre(3, 4, 3, 4));
  const auto normalized = embed({.normalized = true, .matryoshka = true, .sizes = {2}}, 2);
  ASSERT_TRUE(normalized.ok()) << normalized.status();
  EXPECT_THAT(normalized->values, ElementsAre(0.6f, 0.8f, 0.6f, 0.8f));
  EXPECT_THAT(embed({.normalized = true, .matryoshka = false, .sizes = {}}, 4)->values,
              ElementsAre(3, 4, 5, 6, 3, 4, 5, 6));
  const auto refusal = [&](EmbeddingTraits traits, int32_t dimensions) {
    return std::string(embed(std::move(traits), dimensions).status().message());
  };
  EXPECT_EQ(refusal({}, 2), "dimensions is 2; allowed: 4, the size of the model's embeddings");
  EXPECT_EQ(refusal({.matryoshka = true}, 5), "dimensions is 5; allowed: 1 to 4");
  EXPECT_EQ(refusal({.matryoshka = true}, 0), "dimensions is 0; allowed: 1 to 4");
  EXPECT_EQ(refusal({.matryoshka = true, .sizes = {1, 2}}, 3),
            "dimensions is 3; allowed: 1, 2 and 4");
}

// A text of parts, which a later one with the same beginning does not compute again.
TEST(EngineEmbeddingTest, ADecodersTextsComeInPartsAndFromTheCache) {
  StepLimits limits = SmallLimits();
  limits.max_model_len = 64;
  limits.embedding_size = 2;
  limits.embeds_parts = true;
  limits.max_num_batched_tokens = 8;
  limits.max_num_seqs = 4;
  auto script = std::make_shared<Script>("");
  auto engine = MakeEngine(script, EngineOptions(), limits);
  const absl::StatusOr<Embeddings> first = Embed(*engine, Inputs({std::string(20, 'x')}));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(first->values, ElementsAre(4, 5)) << "of the last part, 8 + 8 + 4";
  const int steps = script->num_submitted();
  EXPECT_EQ(steps, 3);
  const absl::StatusOr<Embeddings> again = Embed(*engine, Inputs({std::string(20, 'x') + "y"}));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(script->num_submitted(), steps + 1);
}

TEST(EngineEmbeddingTest, OneThatIsGivenUpEndsAndTheNextIsAnswered) {
  auto script = std::make_shared<Script>("");
  script->Hold();
  auto engine = MakeEncoder(script);
  Call gone(*engine, Inputs(Same(300, "abc")));
  ASSERT_TRUE(Eventually([&] { return script->num_submitted() > 0; }));
  gone.GiveUp();
  EXPECT_EQ(gone.Get().status().code(), absl::StatusCode::kCancelled);
  script->Release();
  const absl::StatusOr<Embeddings> next = Embed(*engine, Inputs({"abcd"}));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_THAT(next->values, ElementsAre(4, 5));
  EXPECT_TRUE(Eventually([&] { return engine->gauges().blocks_held == 0; }));
  gone.GiveUp();
}

TEST(EngineEmbeddingTest, ADeadlineEndsARequest) {
  auto script = std::make_shared<Script>("");
  auto engine = MakeEncoder(script);
  EmbedRequest late = Inputs(Same(3, "abc"));
  late.deadline = absl::InfinitePast();
  EXPECT_EQ(Embed(*engine, late).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Metric(*engine, kCancelled, "reason=\"deadline\""), 1);
  script->Hold();
  late.deadline = absl::Now() + absl::Milliseconds(20);
  EXPECT_EQ(Embed(*engine, late).status().code(), absl::StatusCode::kDeadlineExceeded);
  script->Release();
}

TEST(EngineEmbeddingTest, ADeadlineHoldsWhileTheTextPoolIsBusy) {
  EngineOptions options;
  ASSERT_EQ(options.text_threads, 2);
  auto engine = MakeEncoder(std::make_shared<Script>(""), options);
  std::promise<void> open;
  const std::shared_future<void> opened = open.get_future().share();
  std::promise<void> entered[2];
  for (std::promise<void>& one : entered) {
    engine->Tokenize({.prompt = "abc"}, [&one, opened](const auto&) {
      one.set_value();
      opened.wait();
    });
    one.get_future().wait();
  }
  EmbedRequest late = Inputs({"abc"});
  late.deadline = absl::Now() + absl::Milliseconds(20);
  EXPECT_EQ(Embed(*engine, late).status().code(), absl::StatusCode::kDeadlineExceeded);
  Call unwanted(*engine, Inputs({"abc"}));
  unwanted.GiveUp();
  EXPECT_EQ(unwanted.Get().status().code(), absl::StatusCode::kCancelled);
  open.set_value();
  EXPECT_TRUE(Embed(*engine, Inputs({"abc"})).ok());
}

TEST(EngineEmbeddingTest, AnEngineThatEndsAnswersFirst) {
  auto script = std::make_shared<Script>("");
  script->Hold();
  auto engine = MakeEncoder(script);
  Call call(*engine, Inputs(Same(300, "abc")));
  engine.reset();
  EXPECT_EQ(call.Get().status().code(), absl::StatusCode::kUnavailable);
}

// ---- Batches ----

TEST(EngineEmbeddingTest, ABatchLargerThanTheQueueComesInOrder) {
  EngineOptions options;
  options.max_waiting = 16;
  auto engine = MakeEncoder(std::make_shared<Script>(""), options);
  std::vector<Prompt> inputs;
  int64_t tokens = 0;
  for (size_t i = 0; i < 1000; ++i) {
    inputs.emplace_back(std::string(1 + i % 50, 'x'));
    tokens += static_cast<int64_t>(1 + i % 50);
  }
  const absl::StatusOr<Embeddings> embeddings = Embed(*engine, Inputs(std::move(inputs)));
  ASSERT_TRUE(embeddings.ok()) << embeddings.status();
  ASSERT_EQ(embeddings->values.size(), 2000u);
  for (size_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(embeddings->values[2 * i], static_cast<float>(1 + i % 50)) << i;
  }
  EXPECT_EQ(embeddings->prompt_tokens, tokens);
}

TEST(EngineEmbeddingTest, ABatchThatWasAcceptedIsFinishedByADrain) {
  auto script = std::make_shared<Script>("");
  script->Hold();
  auto engine = MakeEncoder(script);
  Call call(*engine, Inputs(Same(1000, "abc")));
  ASSERT_TRUE(Eventually([&] { return script->num_submitted() > 0; }));
  engine->BeginDrain();
  script->Release();
  EXPECT_TRUE(engine->WaitIdle(SteadyTime::max()));
  const absl::StatusOr<Embeddings> drained = call.Get();
  ASSERT_TRUE(drained.ok()) << drained.status();
  EXPECT_EQ(drained->prompt_tokens, 3000);
  EXPECT_EQ(Embed(*engine, Inputs({"abc"})).status().code(), absl::StatusCode::kUnavailable);
}

TEST(EngineEmbeddingTest, LargeBatchesLeaveCapacityForOthers) {
  EngineOptions options;
  options.max_waiting = 28;
  auto script = std::make_shared<Script>("");
  script->Hold();
  auto engine = MakeEncoder(script, options);
  std::vector<std::unique_ptr<Call>> large;
  for (int i = 0; i < 5; ++i) {
    large.push_back(std::make_unique<Call>(*engine, Inputs(Same(300, "abc"))));
  }
  const LoopGauges& gauges = engine->gauges();
  // Half of 28 + 4, and a place for each batch that came when others had taken these.
  ASSERT_TRUE(Eventually([&] { return gauges.running + gauges.waiting >= 16; }));
  EXPECT_LE(gauges.running + gauges.waiting, 16 + 4);
  Call small(*engine, Inputs({"abcd"}));
  script->Release();
  EXPECT_TRUE(small.Get().ok());
  for (const auto& call : large) EXPECT_TRUE(call->Get().ok());
  EXPECT_EQ(Metric(*engine, kRejections, "reason=\"queue_full\""), 0);
}

TEST(EngineEmbeddingTest, AFullQueueEvictsTheLatestOfTheTenantThatHoldsMost) {
  auto script = std::make_shared<Script>("");
  script->Hold();
  EngineOptions options;
  options.max_waiting = 2;
  auto engine = MakeEncoder(script, options);
  const auto ask = [&](uint32_t tenant) {
    EmbedRequest request = Inputs({"abc"});
    request.tenant =
        std::make_shared<Tenant>(tenant, TenantLimits(), std::make_shared<TenantUsage>());
    return Call(*engine, std::move(request));
  };
  std::vector<Call> flood;
  for (int i = 0; i < 6; ++i) flood.push_back(ask(1));
  EXPECT_EQ(ask(1).Get().status().code(), absl::StatusCode::kResourceExhausted);
  Call light = ask(2);
  const absl::Status evicted = flood[5].Get().status();
  EXPECT_EQ(evicted.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(evicted.message()), HasSubstr("the queue is full"));
  script->Release();
  EXPECT_TRUE(light.Get().ok());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(flood[i].Get().ok()) << i;
  EXPECT_TRUE(engine->WaitIdle(Clock::Real().Now() + kHang));
}

// All embeddings that are alive are bounded together, whatever one request asks for.
TEST(EngineEmbeddingTest, TheMemoryOfAllIsBounded) {
  auto script = std::make_shared<Script>("");
  script->Hold();
  EngineOptions options;
  options.max_embedding_bytes = 10000;
  auto engine = MakeEncoder(script, options);
  Call large(*engine, Inputs(Same(300, "abc")));  // more than that, but alone
  const absl::Status refused = Embed(*engine, Inputs({"abc"})).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(" bytes are alive, and these have "));
  EXPECT_EQ(Metric(*engine, kRejections, "reason=\"queue_full\""), 1);
  script->Release();
  EXPECT_TRUE(large.Get().ok());
  Call first(*engine, Inputs({"abc"})), second(*engine, Inputs({"abc"}));
  EXPECT_TRUE(first.Get().ok());
  EXPECT_TRUE(second.Get().ok());
}

TEST(EngineEmbeddingTest, NoTenantTakesTheMemoryOfAll) {
  auto script = std::make_shared<Script>("");
  script->Hold();
  EngineOptions options;
  options.max_embedding_bytes = 20000;
  auto engine = MakeEncoder(script, options);
  const auto call = [&](uint32_t id) {
    EmbedRequest request = Inputs(Same(20, "abc"));
    request.tenant = std::make_shared<Tenant>(id, TenantLimits(), std::make_shared<TenantUsage>());
    return std::make_unique<Call>(*engine, std::move(request));
  };
  std::vector<std::unique_ptr<Call>> taken;
  for (int i = 0; i < 20; ++i) taken.push_back(call(1));
  auto other = call(2);
  script->Release();
  EXPECT_TRUE(other->Get().ok());
  EXPECT_TRUE(taken.front()->Get().ok());
  EXPECT_EQ(taken.back()->Get().status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(EngineEmbeddingTest, AnErrorNamesTheInput) {
  auto engine = MakeEncoder();
  const auto refusal = [&](size_t count, size_t bad, const Prompt& input) {
    std::vector<Prompt> inputs = Same(count, "abc");
    inputs[bad] = input;
    return Embed(*engine, Inputs(std::move(inputs))).status();
  };
  const absl::Status too_long = refusal(20, 11, std::string(100, 'x'));
  EXPECT_EQ(too_long.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(too_long.message(),
            "input[11] has 100 tokens; allowed: at most 64, or truncate_prompt_tokens");
  EXPECT_EQ(refusal(1, 0, std::vector<Token>(65, 1)).message(),
            "input has 65 tokens; allowed: at most 64, or truncate_prompt_tokens");
  EXPECT_EQ(refusal(700, 650, std::vector<Token>{1, 300}).message(),
            "input[650][1] is 300; allowed: 0 to 257");
  EXPECT_EQ(refusal(3, 2, "").message(), "input[2] is empty");
  EXPECT_EQ(Embed(*engine, Inputs({})).status().message(), "input is empty");
  EXPECT_EQ(refusal(2, 1, std::string(Tokenizer::kMaxTextBytes + 1, 'x')).message(),
            "input[1] has 8388609 bytes; allowed: at most 8388608");
}

TEST(EngineEmbeddingTest, ABadBatchIsOneRefusal) {
  auto engine = MakeEncoder();
  std::vector<Prompt> inputs = Same(700, "abc");
  inputs[650] = std::string(100, 'x');
  EXPECT_FALSE(Embed(*engine, Inputs(std::move(inputs))).ok());
  EXPECT_FALSE(Embed(*engine, Inputs(Same(700, std::vector<Token>{300}))).ok());
  EXPECT_EQ(Metric(*engine, kRejections, "reason=\"invalid\""), 2);
  EXPECT_EQ(Metric(*engine, kCancelled, "reason=\"client_gone\""), 0);
  EXPECT_EQ(Metric(*engine, "vllm:prompt_tokens_total"), 0);
  EXPECT_TRUE(engine->WaitIdle(SteadyTime::max()));
}

TEST(EngineEmbeddingTest, TheFirstInputThatFailsEndsItsBatch) {
  auto script = std::make_shared<Script>("");
  script->Hold();
  StepLimits limits = EncoderLimits();
  limits.max_num_seqs = 1;  // of the inputs that are handed over, most wait
  EngineOptions options;
  options.max_waiting = 20;
  auto engine = MakeEngine(script, options, limits);
  Call call(*engine, Inputs(Same(700, "abc")));
  ASSERT_TRUE(Eventually([&] { return script->num_submitted() > 0; }));
  script->FailRows();
  script->Finish();  // the first input; the second one's step waits until the others are given up
  EXPECT_TRUE(
      Eventually([&] { return Metric(*engine, kCancelled, "reason=\"batch_failed\"") > 0; }));
  script->Release();
  EXPECT_THAT(std::string(call.Get().status().message()), StartsWith("input[0]: "));
  EXPECT_EQ(Metric(*engine, kCancelled, "reason=\"client_gone\""), 0);
  EXPECT_TRUE(Eventually([&] { return engine->gauges().blocks_held == 0; }));
}

// While one answer is being written, another comes: it is not the output shard that writes.
TEST(EngineEmbeddingTest, AnAnswerThatIsBeingWrittenHoldsUpNoOther) {
  EngineOptions options;
  options.output_threads = 1;
  std::promise<void> written;
  std::promise<bool> in_time;
  auto engine = MakeEncoder(std::make_shared<Script>(""), options);
  engine->Embed(Inputs(Same(5000, "abc")), [&](const auto&) {
    in_time.set_value(written.get_future().wait_for(kHang) == std::future_status::ready);
  });
  EXPECT_TRUE(Embed(*engine, Inputs({"abc"})).ok());
  written.set_value();
  EXPECT_TRUE(in_time.get_future().get());
}

// A client that has read an end asks again at once, also where only one request may be alive.
TEST(EngineEmbeddingTest, AnEndFreesCapacityBeforeItIsTold) {
  EngineOptions options;
  options.max_waiting = 1;
  StepLimits limits = EncoderLimits();
  limits.max_num_seqs = 1;
  auto script = std::make_shared<Script>("");
  script->Hold();
  std::promise<absl::StatusOr<Embeddings>> again;
  auto engine = MakeEngine(script, options, limits);
  Call other(*engine, Inputs({"abc"}));
  engine->Embed(Inputs({"abc"}), [&](const auto&) {
    engine->Embed(Inputs({"abc"}), [&](auto result) { again.set_value(std::move(result)); });
  });
  EXPECT_EQ(Embed(*engine, Inputs({"abc"})).status().code(), absl::StatusCode::kResourceExhausted);
  script->Finish();
  script->Finish();
  script->Release();
  EXPECT_TRUE(again.get_future().get().ok());
  EXPECT_TRUE(other.Get().ok());
}

}  // namespace
}  // namespace millrace
