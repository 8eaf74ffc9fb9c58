// Tests of answers. How requests and the engine end is in engine_life_test.cc.
#include <sys/resource.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<Script> Says(std::string text) { return std::make_shared<Script>(std::move(text)); }

TEST(EngineTest, AnswersUntilTheModelStops) {
  auto engine = MakeEngine(Says("hello"));
  Reader reader(engine.get(), TextRequest("abc"));
  const Finish& finish = reader.ReadAll();
  EXPECT_TRUE(finish.status.ok()) << finish.status;
  EXPECT_EQ(finish.reason, FinishReason::kStop);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(finish.stopped_by));
  EXPECT_EQ(reader.text(), "hello");
  EXPECT_EQ(reader.tokens(), (std::vector<Token>{'h', 'e', 'l', 'l', 'o', 257}));
  EXPECT_EQ(finish.usage.prompt_tokens, 3);
  EXPECT_EQ(finish.usage.completion_tokens, 6);
  EXPECT_GE(finish.timings.queue, absl::ZeroDuration());
}

TEST(EngineTest, RefusesTokensThatTheModelDoesNotKnow) {
  StepLimits limits = SmallLimits();
  limits.vocab_size = 256;  // without <s> and </s>
  auto engine = MakeEngine(Says("hello"), {}, limits);
  Reader known(engine.get(), TextRequest("abc"));
  EXPECT_TRUE(known.ReadAll().status.ok());
  Reader text(engine.get(), TextRequest("ab<s>"));
  EXPECT_EQ(text.ReadAll().status.message(),
            "prompt has the token 256, which the model does not know; allowed: 0 to 255");
  GenerateRequest request = TextRequest("");
  request.prompt = std::vector<Token>{5, 257};
  Reader tokens(engine.get(), request);
  EXPECT_EQ(tokens.ReadAll().status.message(), "prompt[1] is 257; allowed: 0 to 255");
}

// A vocabulary may be padded: what the model can draw can be sent back.
TEST(EngineTest, TakesIdsBeyondTheTokenizersOfAPaddedVocabulary) {
  StepLimits limits = SmallLimits();
  limits.vocab_size = 300;
  auto engine = MakeEngine(Says("hello"), {}, limits);
  GenerateRequest request = TextRequest("");
  request.prompt = std::vector<Token>{5, 299};
  request.logit_bias = {{299, -1.0f}};
  request.stop_token_ids = {299};
  request.echo = true;
  request.logprobs = 0;
  Reader padded(engine.get(), request);
  EXPECT_TRUE(padded.ReadAll().status.ok()) << padded.finish().status;
  EXPECT_EQ(padded.text(), "hello");
  EXPECT_THAT(padded.events().front().tokens, ElementsAre(5, 299));
  request.prompt = std::vector<Token>{5, 300};
  Reader beyond(engine.get(), request);
  EXPECT_EQ(beyond.ReadAll().status.message(), "prompt[1] is 300; allowed: 0 to 299");
}

TEST(EngineTest, EveryChoiceIsAnAnswerAndThePromptIsEchoedOnce) {
  auto script = Says("hello");
  auto engine = MakeEngine(script);
  GenerateRequest request = TextRequest("a prompt of more than one block");
  request.n = 3;
  request.echo = true;
  request.mean_logprob = true;
  std::vector<Reader> readers = Reader::OfChoices(engine.get(), request);
  ASSERT_EQ(readers.size(), 3);
  for (size_t i = 0; i < readers.size(); ++i) {
    const Finish& finish = readers[i].ReadAll();
    EXPECT_EQ(finish.reason, FinishReason::kStop);
    EXPECT_EQ(readers[i].text(), "hello");
    EXPECT_EQ(readers[i].events()[0].echo, i == 0);
    EXPECT_EQ(finish.usage.prompt_tokens, 31);
    EXPECT_EQ(finish.usage.completion_tokens, 6);
    EXPECT_EQ(finish.usage.cached_tokens, 0);
    EXPECT_TRUE(finish.mean_logprob.has_value());
  }
  // The prompt, and for each of the others its last token.
  EXPECT_EQ(script->num_in_first_rows(), 31 + 2);
}

TEST(EngineTest, AChoiceMayBeCancelledByItself) {
  auto script = Says("hello");
  script->Hold();
  auto engine = MakeEngine(script);
  GenerateRequest request = TextRequest("abc");
  request.n = 2;
  std::vector<Reader> readers = Reader::OfChoices(engine.get(), request);
  readers[0].stream().Cancel(CancelReason::kClientGone);
  script->Release();
  EXPECT_EQ(readers[0].ReadAll().reason, FinishReason::kCancelled);
  EXPECT_EQ(readers[1].ReadAll().reason, FinishReason::kStop);
  EXPECT_EQ(readers[1].text(), "hello");
}

TEST(EngineTest, ChoicesThatNeedNoModelEndAtOnce) {
  auto engine = MakeEngine(Says("hello"));
  GenerateRequest request = TextRequest("abc");
  request.n = 2;
  request.echo = true;
  request.max_tokens = 0;
  for (Reader& reader : Reader::OfChoices(engine.get(), request)) {
    EXPECT_EQ(reader.ReadAll().reason, FinishReason::kLength);
    EXPECT_EQ(reader.finish().usage.completion_tokens, 0);
  }
}

TEST(EngineTest, StopsAtMaxTokens) {
  auto engine = MakeEngine(Says("hello"));
  GenerateRequest request = TextRequest("abc");
  request.max_tokens = 3;
  Reader reader(engine.get(), request);
  EXPECT_EQ(reader.ReadAll().reason, FinishReason::kLength);
  EXPECT_EQ(reader.text(), "hel");
  EXPECT_EQ(reader.finish().usage.completion_tokens, 3);
}

TEST(EngineTest, WithoutMaxTokensGivesAsManyAsFit) {
  auto engine = MakeEngine(Says(std::string(1000, 'x')));
  Reader reader(engine.get(), TextRequest("abc"));
  EXPECT_EQ(reader.ReadAll().reason, FinishReason::kLength);
  EXPECT_EQ(reader.finish().usage.completion_tokens, 256 - 3);
}

TEST(EngineTest, IgnoresEos) {
  auto engine = MakeEngine(Says("hi"));
  GenerateRequest request = TextRequest("abc");
  request.max_tokens = 5;
  request.ignore_eos = true;
  Reader reader(engine.get(), request);
  EXPECT_EQ(reader.ReadAll().reason, FinishReason::kLength);
  EXPECT_EQ(reader.text(), "hi");
  EXPECT_EQ(reader.finish().usage.completion_tokens, 5);
}

TEST(EngineTest, StopTokenIsCountedAndNotShown) {
  for (const bool include : {false, true}) {
    auto engine = MakeEngine(Says("hello"));
    GenerateRequest request = TextRequest("abc");
    request.stop_token_ids = {'l'};
    request.include_stop_str_in_output = include;
    Reader reader(engine.get(), request);
    EXPECT_EQ(reader.ReadAll().reason, FinishReason::kStop);
    EXPECT_EQ(std::get<Token>(reader.finish().stopped_by), 'l');
    EXPECT_EQ(reader.text(), include ? "hel" : "he");
    EXPECT_EQ(reader.finish().usage.completion_tokens, 3);
  }
}

TEST(EngineTest, StopStringAcrossTokensIsNeverShown) {
  for (const bool include : {false, true}) {
    auto engine = MakeEngine(Says("one two three"));
    GenerateRequest request = TextRequest("abc");
    request.stop = {"nothing", " two"};
    request.include_stop_str_in_output = include;
    Reader reader(engine.get(), request);
    EXPECT_EQ(reader.ReadAll().reason, FinishReason::kStop);
    EXPECT_EQ(std::get<std::string>(reader.finish().stopped_by), " two");
    EXPECT_EQ(reader.text(), include ? "one two" : "one");
    // The steps that ran on meanwhile are not paid for.
    EXPECT_EQ(reader.finish().usage.completion_tokens, 7);
    EXPECT_EQ(reader.tokens().size(), 7u);
  }
}

TEST(EngineTest, HeldBackTextComesInTheEnd) {
  auto engine = MakeEngine(Says("one tw"));
  GenerateRequest request = TextRequest("abc");
  request.stop = {" two"};
  Reader reader(engine.get(), request);
  EXPECT_EQ(reader.ReadAll().reason, FinishReason::kStop);
  EXPECT_EQ(reader.text(), "one tw");
}

TEST(EngineTest, MinTokensKeepsStopStringsOut) {
  auto engine = MakeEngine(Says("xaxax"));
  GenerateRequest request = TextRequest("abc");
  request.stop = {"a"};
  request.min_tokens = 3;
  Reader reader(engine.get(), request);
  EXPECT_EQ(reader.ReadAll().reason, FinishReason::kStop);
  EXPECT_EQ(reader.text(), "xax");
}

TEST(EngineTest, NeverShowsHalfACharacter) {
  auto engine =
      MakeEngine(Says("a\xE2\x82\xAC"
                      "b\xE2\x82"));
  Reader reader(engine.get(), TextRequest("abc"));
  reader.ReadAll();
  EXPECT_EQ(reader.text(),
            "a\xE2\x82\xAC"
            "b\xEF\xBF\xBD");
  for (const OutputEvent& event : reader.events()) {
    EXPECT_TRUE(event.text.empty() || (event.text[0] & 0xC0) != 0x80) << event.text;
  }
}

TEST(EngineTest, GivesLogprobs) {
  auto engine = MakeEngine(Says("hi"));
  GenerateRequest request = TextRequest("abc");
  request.logprobs = 2;
  Reader reader(engine.get(), request);
  reader.ReadAll();
  std::vector<TokenDetail> details;
  for (const OutputEvent& event : reader.events()) {
    EXPECT_EQ(event.details.size(), event.tokens.size());
    details.insert(details.end(), event.details.begin(), event.details.end());
  }
  ASSERT_EQ(details.size(), 3u);
  EXPECT_EQ(details[0].token, 'h');
  EXPECT_EQ(details[0].bytes, "h");
  EXPECT_EQ(details[0].logprob, -0.5f);
  EXPECT_EQ(details[0].rank, 1);
  ASSERT_EQ(details[0].top.size(), 2u);
  EXPECT_EQ(details[0].top[1].bytes, "b");
}

TEST(EngineTest, EchoesThePromptFirst) {
  auto engine = MakeEngine(Says("hi"));
  GenerateRequest request = TextRequest("abc");
  request.echo = true;
  Reader reader(engine.get(), request);
  reader.ReadAll();
  const OutputEvent& echo = reader.events().front();
  EXPECT_TRUE(echo.echo);
  EXPECT_EQ(echo.text, "abc");
  EXPECT_THAT(echo.tokens, ElementsAre('a', 'b', 'c'));
  EXPECT_TRUE(echo.details.empty());
  EXPECT_EQ(reader.text(), "hi");
}

TEST(EngineTest, ScoresTheEchoedPrompt) {
  // Longer than a step, so that its scores come in pieces; with and without an answer.
  const std::string prompt(150, 'p');
  for (const int32_t max_tokens : {0, 2}) {
    auto engine = MakeEngine(Says("hi"));
    GenerateRequest request = TextRequest(prompt);
    request.echo = true;
    request.logprobs = 1;
    request.max_tokens = max_tokens;
    Reader reader(engine.get(), request);
    EXPECT_EQ(reader.ReadAll().reason, FinishReason::kLength);
    EXPECT_EQ(reader.finish().usage.completion_tokens, max_tokens);
    const OutputEvent& echo = reader.events().front();
    EXPECT_TRUE(echo.echo);
    ASSERT_EQ(echo.details.size(), prompt.size());
    EXPECT_EQ(echo.details[0].logprob, std::nullopt);
    EXPECT_EQ(echo.details[1].logprob, -0.5f);
    EXPECT_EQ(echo.details.back().token, 'p');
    EXPECT_EQ(reader.tokens().size(), static_cast<size_t>(max_tokens));
  }
}

TEST(EngineTest, EchoAloneNeedsNoStep) {
  auto script = Says("hi");
  auto engine = MakeEngine(script);
  GenerateRequest request = TextRequest("abc");
  request.echo = true;
  request.max_tokens = 0;
  Reader reader(engine.get(), request);
  EXPECT_EQ(reader.ReadAll().reason, FinishReason::kLength);
  EXPECT_EQ(reader.events().front().text, "abc");
  EXPECT_EQ(script->num_submitted(), 0);
}

TEST(EngineTest, WhatIsRefusedIsNotCopiedForEachChoice) {
  const auto peak_kib = [] {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  auto engine = MakeEngine(Says("hi"));
  GenerateRequest request = TextRequest("abc");
  request.stop = {std::string(8 << 20, 's')};
  request.n = kMaxChoices;
  const auto before = peak_kib();
  std::vector<Reader> readers = Reader::OfChoices(engine.get(), std::move(request));
  ASSERT_EQ(readers.size(), static_cast<size_t>(kMaxChoices));
  for (Reader& reader : readers) {
    EXPECT_EQ(reader.ReadAll().status.message(), "stop[0] has 8388608 bytes; allowed: 1 to 1024");
  }
  EXPECT_LT(peak_kib() - before, 256 << 10);  // copies would be 1 GiB
}

TEST(EngineTest, TheModelsOwnLengthGivesWay) {
  const auto length = [](int32_t wanted, int32_t min_tokens) {
    auto engine = MakeEngine(Says("hi"));
    GenerateRequest request = TextRequest(std::string(150, 'p'));
    request.max_tokens.reset();
    request.default_max_tokens = wanted;
    request.min_tokens = min_tokens;
    request.ignore_eos = true;
    Reader reader(engine.get(), request);
    EXPECT_EQ(reader.ReadAll().reason, FinishReason::kLength);
    return reader.finish().usage.completion_tokens;
  };
  EXPECT_EQ(length(3, 0), 3);
  EXPECT_EQ(length(3, 5), 5);
  EXPECT_EQ(length(1000, 0), SmallLimits().max_model_len - 150);
}

// Each step of such a prompt may have tens of thousands of log-probabilities.
TEST(EngineTest, NoTokenWaitsForThePromptsThatAreScored) {
  auto engine = MakeEngine(Says("hi"));
  std::promise<void> entered, opens;
  GenerateRequest scored = TextRequest("abc");
  scored.echo = true;
  scored.logprobs = 1;
  std::atomic<bool> first = true;
  const auto streams = engine->Generate(scored, [&, opened = opens.get_future().share()] {
    if (!first.exchange(false)) return;
    entered.set_value();
    opened.wait();  // holds the thread that makes its output
  });
  entered.get_future().wait();
  for (int i = 0; i < 3; ++i) {
    Reader reader(engine.get(), TextRequest("x"));
    EXPECT_EQ(reader.ReadAll().reason, FinishReason::kStop);
  }
  opens.set_value();
}

TEST(EngineTest, RendersChats) {
  auto engine = MakeEngine(Says("hi"));
  GenerateRequest request;
  request.prompt = Chat{.messages = {{.role = "user", .content = "hello"}}};
  request.echo = true;
  Reader reader(engine.get(), request);
  reader.ReadAll();
  EXPECT_EQ(reader.events().front().text,
            "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n");
}

TEST(EngineTest, RefusesWhatCanNeverFit) {
  auto engine = MakeEngine(Says("hi"));
  Reader reader(engine.get(), TextRequest(std::string(300, 'x')));
  const Finish& finish = reader.ReadAll();
  EXPECT_EQ(finish.reason, FinishReason::kError);
  EXPECT_EQ(finish.status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(finish.status.message()), HasSubstr("300"));
  EXPECT_THAT(std::string(finish.status.message()), HasSubstr("256"));
}

TEST(EngineTest, RefusesATextThatCannotFitWithoutReadingIt) {
  auto engine = MakeEngine(Says("hi"));
  Reader reader(engine.get(), TextRequest(std::string(256 * 4 + 1, 'x')));
  reader.Drain();  // there without waiting for the text pool
  ASSERT_EQ(reader.events().size(), 1u);
  EXPECT_THAT(std::string(reader.finish().status.message()), HasSubstr("1025 bytes"));
}

TEST(EngineTest, AnyDeadlineCanBeGiven) {
  for (const absl::Time deadline : {absl::InfinitePast(), absl::InfiniteFuture()}) {
    auto engine = MakeEngine(Says("hi"));
    GenerateRequest request = TextRequest("abc");
    request.deadline = deadline;
    Reader reader(engine.get(), request);
    EXPECT_EQ(reader.ReadAll().reason,
              deadline == absl::InfinitePast() ? FinishReason::kCancelled : FinishReason::kStop);
  }
}

TEST(EngineTest, RefusesBadFields) {
  auto engine = MakeEngine(Says("hi"));
  GenerateRequest request = TextRequest("abc");
  request.temperature = 3;
  Reader reader(engine.get(), request);
  EXPECT_EQ(reader.ReadAll().status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(EngineTest, ARowThatFailsEndsItsRequest) {
  auto script = Says("hi");
  script->FailRows();
  auto engine = MakeEngine(script);
  Reader reader(engine.get(), TextRequest("abc"));
  EXPECT_EQ(reader.ReadAll().reason, FinishReason::kError);
  EXPECT_EQ(reader.finish().status.code(), absl::StatusCode::kInternal);
  Reader next(engine.get(), TextRequest("abc"));
  EXPECT_EQ(next.ReadAll().reason, FinishReason::kStop);
  EXPECT_EQ(engine->health(), Health::kServing);
}

TEST(EngineTest, TellsWhatCameFromThePrefixCache) {
  auto engine = MakeEngine(Says("hi"));
  const std::string prompt(50, 'x');
  Reader first(engine.get(), TextRequest(prompt));
  EXPECT_EQ(first.ReadAll().usage.cached_tokens, 0);
  Reader second(engine.get(), TextRequest(prompt));
  EXPECT_EQ(second.ReadAll().usage.cached_tokens, 48);
}

}  // namespace
}  // namespace millrace
