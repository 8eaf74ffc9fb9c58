// Tests of requests with several choices: they share the prompt, its admission and its count.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

TEST(EngineChoicesTest, ARefusalIsCountedOnceForAllOfThem) {
  auto engine = MakeEngine(std::make_shared<Script>("hello"));
  const auto rejected = [&] {
    return Metric(*engine, "vllm:admission_rejections_total", "reason=\"invalid\"");
  };
  GenerateRequest request = TextRequest("abc");
  request.n = 3;
  request.top_p = 2;  // refused
  for (Reader& reader : Reader::OfChoices(engine.get(), request)) {
    EXPECT_EQ(reader.ReadAll().status.code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(rejected(), 1);
  request.top_p = 1;
  request.prompt.emplace<std::string>(300, 'p');  // once it has been tokenized
  for (Reader& reader : Reader::OfChoices(engine.get(), request)) {
    EXPECT_EQ(reader.ReadAll().status.code(), absl::StatusCode::kOutOfRange);
  }
  EXPECT_EQ(rejected(), 2);
}

TEST(EngineChoicesTest, MoreThanCanEverRunAndWaitAreRefusedForGood) {
  EngineOptions options;
  options.max_waiting = 2;
  auto engine = MakeEngine(std::make_shared<Script>("hello"), options);
  GenerateRequest request = TextRequest("abc");
  request.n = 6;
  for (Reader& reader : Reader::OfChoices(engine.get(), request)) {
    EXPECT_EQ(reader.ReadAll().reason, FinishReason::kStop);
  }
  request.n = 7;
  const auto error = [&] {
    std::vector<Reader> readers = Reader::OfChoices(engine.get(), request);
    const absl::Status status = readers[0].ReadAll().status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_FALSE(RetryAfter(status).has_value());
    return std::string(status.message());
  };
  EXPECT_THAT(error(), HasSubstr("n is 7; allowed: 1 to 6"));
  request.mean_logprob = true;  // as best_of asks for it
  EXPECT_THAT(error(), HasSubstr("best_of is 7; allowed: 1 to 6"));
}

TEST(EngineChoicesTest, ThePromptIsCountedWhicheverOfThemLives) {
  for (const size_t cancelled : {0u, 1u}) {
    auto script = std::make_shared<Script>("hello");
    script->Hold();
    auto engine = MakeEngine(script);
    GenerateRequest request = TextRequest("abc");
    request.n = 3;
    std::vector<Reader> readers = Reader::OfChoices(engine.get(), request);
    readers[cancelled].stream().Cancel(CancelReason::kClientGone);
    EXPECT_EQ(readers[cancelled].ReadAll().reason, FinishReason::kCancelled);
    script->Release();
    for (size_t i = 0; i < readers.size(); ++i) {
      if (i == cancelled) continue;
      EXPECT_EQ(readers[i].ReadAll().reason, FinishReason::kStop);
    }
    EXPECT_EQ(Metric(*engine, "vllm:prompt_tokens_total"), 3) << cancelled;
  }
}

TEST(EngineChoicesTest, EachCountsWhatItHasOfThePrediction) {
  auto engine = MakeEngine(std::make_shared<Script>("hello there"));
  GenerateRequest request = TextRequest("abc");
  request.prediction = "hello where";
  request.n = 2;
  for (Reader& reader : Reader::OfChoices(engine.get(), request)) {
    const std::optional<PredictedTokens> predicted = reader.ReadAll().usage.predicted;
    ASSERT_TRUE(predicted.has_value());
    EXPECT_EQ(predicted->accepted, 6 + 4);  // "hello ", "here"
    EXPECT_EQ(predicted->rejected, 1);
  }
  request.speculative = false;
  request.n = 1;
  EXPECT_EQ(Reader(engine.get(), request).ReadAll().usage.predicted->accepted, 10);
  request.prediction.clear();
  EXPECT_FALSE(Reader(engine.get(), request).ReadAll().usage.predicted.has_value());
  request.prediction.assign(Tokenizer::kMaxTextBytes + 1, 'x');
  EXPECT_THAT(std::string(Reader(engine.get(), request).ReadAll().status.message()),
              HasSubstr("prediction has 8388609 bytes; allowed: at most 8388608"));
}

}  // namespace
}  // namespace millrace
