// What an engine makes of requests for embeddings.
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/embedding_batch.h"
#include "server/engine_test_util.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

GenerateRequest EmbedRequest(std::string text) {
  GenerateRequest request = TextRequest(std::move(text));
  request.embed = true;
  request.max_tokens = 0;
  return request;
}

TEST(EngineEmbeddingTest, AnswersWithTheEmbedding) {
  auto engine = MakeEncoder();
  EXPECT_EQ(engine->info().embedding_size, 2);
  Reader reader(engine.get(), EmbedRequest("abc"));
  const Finish& finish = reader.ReadAll();
  EXPECT_TRUE(finish.status.ok()) << finish.status;
  EXPECT_EQ(finish.reason, FinishReason::kStop);
  EXPECT_EQ(finish.usage.prompt_tokens, 3);
  EXPECT_EQ(finish.usage.completion_tokens, 0);
  ASSERT_EQ(reader.events().size(), 1u);
  EXPECT_THAT(reader.events()[0].embedding, ElementsAre(3, 4));
}

TEST(EngineEmbeddingTest, AModelDoesWhatItIsFor) {
  auto encoder = MakeEncoder();
  Reader generate(encoder.get(), TextRequest("abc"));
  EXPECT_EQ(generate.ReadAll().status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(generate.finish().status.message()),
              HasSubstr("which does not support the Completions API"));
  auto decoder = MakeEngine(std::make_shared<Script>("hello"));
  Reader embed(decoder.get(), EmbedRequest("abc"));
  EXPECT_EQ(embed.ReadAll().status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(embed.finish().status.message()),
              HasSubstr("which does not support the Embeddings API"));
}

TEST(EngineEmbeddingTest, ATextThatIsTooLongIsRefusedOrCut) {
  auto engine = MakeEncoder();
  const std::string text(100, 'x');
  Reader whole(engine.get(), EmbedRequest(text));
  EXPECT_EQ(whole.ReadAll().status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(whole.finish().status.message(),
            "the prompt has 100 tokens, but the model's length is 64");
  for (const auto& [asked, tokens] : {std::pair{-1, 64}, {64, 64}, {7, 7}}) {
    GenerateRequest request = EmbedRequest(text);
    request.truncate_prompt_tokens = asked;
    Reader cut(engine.get(), request);
    EXPECT_TRUE(cut.ReadAll().status.ok()) << cut.finish().status;
    EXPECT_EQ(cut.finish().usage.prompt_tokens, tokens);
  }
  for (const int32_t asked : {0, -2, 65}) {
    GenerateRequest request = EmbedRequest(text);
    request.truncate_prompt_tokens = asked;
    Reader wrong(engine.get(), request);
    EXPECT_EQ(wrong.ReadAll().status.message(),
              absl::StrCat("truncate_prompt_tokens is ", asked, "; allowed: -1, and 1 to 64"));
  }
}

TEST(EngineEmbeddingTest, ACancelledOneEndsAndTheNextIsAnswered) {
  auto script = std::make_shared<Script>("");
  script->Hold();
  auto engine = MakeEncoder(script);
  Reader gone(engine.get(), EmbedRequest("abc"));
  ASSERT_TRUE(Eventually([&] { return script->num_submitted() == 1; }));
  gone.stream().Cancel(CancelReason::kClientGone);
  EXPECT_EQ(gone.ReadAll().reason, FinishReason::kCancelled);
  EXPECT_TRUE(gone.events().back().embedding.empty());
  script->Release();
  Reader next(engine.get(), EmbedRequest("abcd"));
  EXPECT_TRUE(next.ReadAll().status.ok());
  EXPECT_THAT(next.events()[0].embedding, ElementsAre(4, 5));
  EXPECT_TRUE(Eventually([&] { return engine->gauges().blocks_held == 0; }));
}

TEST(EngineEmbeddingTest, ADeadlineAndARowThatFailsEndARequest) {
  auto script = std::make_shared<Script>("");
  auto engine = MakeEncoder(script);
  GenerateRequest late = EmbedRequest("abc");
  late.deadline = absl::InfinitePast();
  Reader reader(engine.get(), late);
  EXPECT_EQ(reader.ReadAll().status.code(), absl::StatusCode::kDeadlineExceeded);
  script->FailRows();
  Reader failed(engine.get(), EmbedRequest("abc"));
  EXPECT_EQ(failed.ReadAll().reason, FinishReason::kError);
}

// Waits for a batch's end as a door does.
absl::StatusOr<Embeddings> Collect(Engine& engine, std::vector<Prompt> inputs) {
  std::mutex mutex;
  std::condition_variable changed;
  bool news = false;
  EmbeddingBatch batch(engine, TextRequest(""), std::move(inputs), [&] {
    const std::lock_guard lock(mutex);
    news = true;
    changed.notify_all();
  });
  for (;;) {
    if (auto embeddings = batch.Poll()) return *std::move(embeddings);
    std::unique_lock lock(mutex);
    if (!changed.wait_for(lock, std::chrono::seconds(60), [&] { return news; })) {
      return absl::DeadlineExceededError("waited in vain");
    }
    news = false;
  }
}

TEST(EngineEmbeddingTest, ABatchLargerThanTheQueueComesInOrder) {
  EngineOptions options;
  options.max_waiting = 300;
  auto engine = MakeEncoder(std::make_shared<Script>(""), options);
  std::vector<Prompt> inputs;
  size_t tokens = 0;
  for (size_t i = 0; i < 1000; ++i) {
    inputs.emplace_back(std::string(1 + i % 50, 'x'));
    tokens += 1 + i % 50;
  }
  const absl::StatusOr<Embeddings> embeddings = Collect(*engine, std::move(inputs));
  ASSERT_TRUE(embeddings.ok()) << embeddings.status();
  ASSERT_EQ(embeddings->vectors.size(), 1000u);
  for (size_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(embeddings->vectors[i].at(0), static_cast<float>(1 + i % 50)) << i;
  }
  EXPECT_EQ(embeddings->prompt_tokens, tokens);
}

TEST(EngineEmbeddingTest, TheFirstErrorEndsABatch) {
  auto engine = MakeEncoder();
  std::vector<Prompt> inputs(20, Prompt("abc"));
  inputs[11] = std::string(100, 'x');
  EXPECT_EQ(Collect(*engine, std::move(inputs)).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(engine->WaitIdle(SteadyTime::max()));
}

}  // namespace
}  // namespace millrace
