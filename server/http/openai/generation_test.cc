#include "server/http/openai/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/http/openai/generation_test_util.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using State = Answer::State;

TEST(GenerationTest, AWholeCompletionHasOpenAisShape) {
  Running run(ApiKind::kCompletion, R"({"prompt": "p"})");
  EXPECT_EQ(run.Poll(), State::kWaiting);
  run.stream().Push(TextEvent("Hel"));
  run.stream().Push(TextEvent("lo \"you\""));
  EXPECT_EQ(run.wakes, 1);
  EXPECT_EQ(run.Poll(), State::kWaiting);
  run.stream().Push(FinishEvent(FinishReason::kLength));
  EXPECT_EQ(run.Poll(), State::kWhole);
  EXPECT_EQ(run.response.status, 200);
  Json json = Json::parse(run.response.body);
  EXPECT_GT(json["created"].get<int64_t>(), 1'700'000'000);
  json.erase("created");
  EXPECT_THAT(json["system_fingerprint"].get<std::string>(), HasSubstr("millrace-"));
  json.erase("system_fingerprint");
  EXPECT_EQ(json, Json::parse(R"({"id": "cmpl-1", "object": "text_completion", "model": "scripted",
      "choices": [{"index": 0, "text": "Hello \"you\"", "logprobs": null,
                   "finish_reason": "length", "stop_reason": null}],
      "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10,
                "prompt_tokens_details": {"cached_tokens": 4}}})"));
}

TEST(GenerationTest, EachChunkHasTheUsageSoFarIfItIsWanted) {
  Running run(ApiKind::kChat, R"({"messages": [{"role": "user", "content": "p"}], "stream": true,
      "stream_options": {"include_usage": true, "continuous_usage_stats": true}})");
  OutputEvent event = TextEvent("Hel", {1, 2});
  event.prompt_tokens = 7;
  run.stream().Push(std::move(event));
  EXPECT_EQ(run.Poll(), State::kPause);
  event = TextEvent("lo", {3});
  event.prompt_tokens = 7;
  run.stream().Push(std::move(event));
  run.stream().Push(FinishEvent());
  EXPECT_EQ(run.Poll(), State::kEnd);
  const std::vector<Json> events = run.Events();
  ASSERT_THAT(events, SizeIs(6));
  const int completion[] = {0, 2, 3, 3};
  for (size_t i = 0; i < 4; ++i) {
    const Json usage = {{"prompt_tokens", 7},
                        {"completion_tokens", completion[i]},
                        {"total_tokens", 7 + completion[i]}};
    EXPECT_EQ(events[i]["usage"], usage) << i;
  }
  EXPECT_EQ(events[4]["usage"]["completion_tokens"], 3);
  EXPECT_TRUE(events[4]["choices"].empty());
}

TEST(GenerationTest, EachPromptHasItsChoicesInARow) {
  Running run(ApiKind::kCompletion, R"({"prompt": ["p", "q"], "n": 2, "seed": 5})");
  for (size_t i = 0; i < 4; ++i) {
    const GenerateRequest request = run.engine.request(i);
    EXPECT_EQ(std::get<std::string>(request.prompt), i < 2 ? "p" : "q");
    EXPECT_EQ(request.n, 2);
    EXPECT_EQ(request.seed, 5);
    EXPECT_EQ(request.id, i < 2 ? "cmpl-1-0" : "cmpl-1-1");
    EXPECT_FALSE(request.mean_logprob);
    run.stream(i).Push(TextEvent(std::to_string(i)));
    run.stream(i).Push(FinishEvent(FinishReason::kLength));
  }
  EXPECT_EQ(run.Poll(), State::kWhole);
  const Json json = Json::parse(run.response.body);
  ASSERT_EQ(json["choices"].size(), 4);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["text"], std::to_string(i));
  }
  // A prompt is counted once, an answer always.
  EXPECT_EQ(json["usage"]["prompt_tokens"], 14);
  EXPECT_EQ(json["usage"]["completion_tokens"], 12);
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 8);
}

TEST(GenerationTest, TheBestOfSeveralCandidatesAreTheAnswer) {
  Running run(ApiKind::kCompletion, R"({"prompt": ["p", "q"], "n": 2, "best_of": 3})");
  const double scores[] = {-3, -1, -2, -0.5, -0.75, -0.25};
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(run.engine.request(i).n, 3);
    EXPECT_TRUE(run.engine.request(i).mean_logprob);
    run.stream(i).Push(TextEvent(std::to_string(i)));
    OutputEvent last = FinishEvent(FinishReason::kLength);
    last.finish->mean_logprob = scores[i];
    run.stream(i).Push(std::move(last));
  }
  EXPECT_EQ(run.Poll(), State::kWhole);
  const Json json = Json::parse(run.response.body);
  ASSERT_EQ(json["choices"].size(), 4);
  const char* const best[] = {"1", "2", "5", "3"};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["text"], best[i]);
  }
  // All candidates were generated.
  EXPECT_EQ(json["usage"]["prompt_tokens"], 14);
  EXPECT_EQ(json["usage"]["completion_tokens"], 18);
}

TEST(GenerationTest, AWholeChatHasOpenAisShape) {
  Running run(ApiKind::kChat, R"({"messages": [{"role": "user", "content": "p"}]})");
  run.stream().Push(FinishEvent(FinishReason::kStop, "Hi"));
  EXPECT_EQ(run.Poll(), State::kWhole);
  const Json json = Json::parse(run.response.body);
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["choices"], Json::parse(R"([{"index": 0, "logprobs": null, "finish_reason": "stop",
      "stop_reason": null,
      "message": {"role": "assistant", "content": "Hi", "refusal": null}}])"));
}

TEST(GenerationTest, EachEventOfAStreamIsALineOfItsOwn) {
  Running run(ApiKind::kCompletion,
              R"({"prompt": "p", "stream": true, "stream_options": {"include_usage": true}})");
  run.stream().Push(TextEvent("a"));
  run.stream().Push(TextEvent("b"));
  run.stream().Push(TextEvent("", {1}));  // held back: nothing to show
  EXPECT_EQ(run.Poll(), State::kPause);
  EXPECT_EQ(run.response.content_type, "text/event-stream; charset=utf-8");
  run.stream().Push(FinishEvent(FinishReason::kStop, "c"));
  EXPECT_EQ(run.Poll(), State::kEnd);
  const std::vector<Json> events = run.Events();
  ASSERT_THAT(events, SizeIs(5));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(events[i]["object"], "text_completion");
    EXPECT_EQ(events[i]["id"], "cmpl-1");
    EXPECT_EQ(events[i]["choices"][0]["text"], std::string(1, static_cast<char>('a' + i)));
    EXPECT_TRUE(events[i]["usage"].is_null());
    EXPECT_EQ(events[i]["choices"][0]["finish_reason"], i < 2 ? Json() : Json("stop"));
  }
  EXPECT_EQ(events[3]["choices"], Json::array());
  EXPECT_EQ(events[3]["usage"]["total_tokens"], 10);
  EXPECT_EQ(events[4], "[DONE]");
}

TEST(GenerationTest, AStreamsHeaderComesWithItsFirstBytes) {
  Running run(ApiKind::kCompletion, R"({"prompt": "p", "stream": true})");
  run.stream().Push(TextEvent("", {1}));  // the first half of a character
  EXPECT_EQ(run.Poll(), State::kWaiting);
  run.response = {};  // nobody sends the response of an answer that waits
  run.stream().Push(TextEvent("é", {2}));
  EXPECT_EQ(run.Poll(), State::kPause);
  EXPECT_EQ(run.response.content_type, "text/event-stream; charset=utf-8");
}

TEST(GenerationTest, AnErrorBeforeTheFirstBytesIsAnAnswerOfItsOwn) {
  Running run(ApiKind::kCompletion, R"({"prompt": "p", "stream": true})");
  run.stream().Push(TextEvent("", {1}));
  EXPECT_EQ(run.Poll(), State::kWaiting);
  run.stream().Push(ErrorEvent(absl::InternalError("NaN")));
  EXPECT_EQ(run.Poll(), State::kWhole);
  EXPECT_EQ(run.response.status, 500);
}

TEST(GenerationTest, WithoutIncludeUsageNoChunkHasUsage) {
  Running run(ApiKind::kCompletion, R"({"prompt": "p", "stream": true})");
  run.stream().Push(FinishEvent(FinishReason::kStop, "c"));
  EXPECT_EQ(run.Poll(), State::kEnd);
  const std::vector<Json> events = run.Events();
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_FALSE(events[0].contains("usage"));
}

TEST(GenerationTest, AChatStreamBeginsWithTheRole) {
  Running run(ApiKind::kChat,
              R"({"messages": [{"role": "user", "content": "p"}], "stream": true})");
  run.stream().Push(TextEvent("Hi"));
  run.stream().Push(FinishEvent());
  EXPECT_EQ(run.Poll(), State::kEnd);
  const std::vector<Json> events = run.Events();
  ASSERT_THAT(events, SizeIs(4));
  EXPECT_EQ(events[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(events[0]["choices"][0]["delta"], Json::parse(R"({"role":"assistant","content":""})"));
  EXPECT_EQ(events[1]["choices"][0]["delta"], Json::parse(R"({"content":"Hi"})"));
  EXPECT_EQ(events[2]["choices"][0]["delta"], Json::object());
  EXPECT_EQ(events[2]["choices"][0]["finish_reason"], "stop");
}

TEST(GenerationTest, StopReasonIsATokenOrAString) {
  for (const bool token : {false, true}) {
    Running run(ApiKind::kCompletion, R"({"prompt": "p"})");
    OutputEvent event = FinishEvent();
    if (token) {
      event.finish->stopped_by = Token{42};
    } else {
      event.finish->stopped_by = "\n\n";
    }
    run.stream().Push(std::move(event));
    EXPECT_EQ(run.Poll(), State::kWhole);
    EXPECT_EQ(Json::parse(run.response.body)["choices"][0]["stop_reason"],
              token ? Json(42) : Json("\n\n"));
  }
}

TEST(GenerationTest, EachPromptIsAChoiceAndUsageIsTheSum) {
  Running run(ApiKind::kCompletion, R"({"prompt": ["p", "q"]})");
  EXPECT_EQ(run.engine.request(0).id, "cmpl-1-0");
  EXPECT_EQ(run.engine.request(1).id, "cmpl-1-1");
  EXPECT_EQ(std::get<std::string>(run.engine.request(1).prompt), "q");
  run.stream(1).Push(FinishEvent(FinishReason::kStop, "second"));
  EXPECT_EQ(run.Poll(), State::kWaiting);
  run.stream(0).Push(FinishEvent(FinishReason::kLength, "first"));
  EXPECT_EQ(run.Poll(), State::kWhole);
  const Json json = Json::parse(run.response.body);
  ASSERT_EQ(json["choices"].size(), 2u);
  EXPECT_EQ(json["choices"][0]["text"], "first");
  EXPECT_EQ(json["choices"][1]["index"], 1);
  EXPECT_EQ(json["choices"][1]["text"], "second");
  EXPECT_EQ(json["usage"]["total_tokens"], 20);
}

TEST(GenerationTest, ARefusalBeforeTheFirstChunkIsAnAnswerOfItsOwn) {
  struct Case {
    absl::Status status;
    int http;
    std::string code;
  };
  for (const Case& c :
       {Case{absl::ResourceExhaustedError("full"), 429, "rate_limit_exceeded"},
        Case{absl::UnavailableError("draining"), 503, "service_unavailable"},
        Case{absl::InternalError("NaN"), 500, "internal_error"},
        Case{absl::InvalidArgumentError("top_k is 3; allowed: 4"), 400, "invalid_value"}}) {
    for (const bool stream : {false, true}) {
      Running run(ApiKind::kCompletion,
                  stream ? R"({"prompt": ["p", "q"], "stream": true})" : R"({"prompt": "p"})");
      run.stream().Push(ErrorEvent(c.status));
      EXPECT_EQ(run.Poll(), State::kWhole);
      EXPECT_EQ(run.response.status, c.http);
      EXPECT_EQ(Json::parse(run.response.body)["error"]["code"], c.code);
      EXPECT_TRUE(run.body.empty());
    }
  }
}

TEST(GenerationTest, AStreamOfSeveralPromptsBeginsWhenAllWereTakenIn) {
  for (const bool refused : {false, true}) {
    Running run(ApiKind::kCompletion, R"({"prompt": ["p", "q"], "n": 2, "stream": true})");
    EXPECT_NE(run.engine.request(0).joint_output, nullptr);
    EXPECT_EQ(run.engine.request(0).joint_output, run.engine.request(2).joint_output);
    run.stream(0).Push({.admitted = true});
    run.stream(0).Push(TextEvent("a"));
    EXPECT_EQ(run.Poll(), State::kWaiting);
    EXPECT_TRUE(run.body.empty());
    EXPECT_EQ(run.stream(0).unread(), 0u) << "it would be a slow reader";
    if (refused) {
      run.stream(2).Push(ErrorEvent(absl::OutOfRangeError("too long")));
      EXPECT_EQ(run.Poll(), State::kWhole);
      EXPECT_EQ(run.response.status, 400);
      EXPECT_TRUE(run.body.empty());
    } else {
      run.stream(2).Push({.admitted = true});
      EXPECT_EQ(run.Poll(), State::kPause);
      EXPECT_THAT(run.Events(), SizeIs(1));
      EXPECT_EQ(run.Events()[0]["choices"][0]["text"], "a");
    }
  }
  Running whole(ApiKind::kCompletion, R"({"prompt": ["p", "q"]})");
  EXPECT_EQ(whole.engine.request().joint_output, nullptr);
  Running one(ApiKind::kCompletion, R"({"prompt": "p", "stream": true})");
  EXPECT_EQ(one.engine.request().joint_output, nullptr);
}

// A prompt that was taken in may still be refused, by its deadline say, in the same poll in which
// another one has its first token.
TEST(GenerationTest, ARefusalWithTheFirstTokenOfAnotherPromptIsAnAnswerOfItsOwn) {
  Running run(ApiKind::kCompletion, R"({"prompt": ["p", "q"], "stream": true})");
  for (int i = 0; i < 2; ++i) run.stream(i).Push({.admitted = true});
  run.stream(0).Push(TextEvent("a"));
  run.stream(1).Push(ErrorEvent(absl::ResourceExhaustedError("full")));
  EXPECT_EQ(run.Poll(), State::kWhole);
  EXPECT_EQ(run.response.status, 429);
  EXPECT_TRUE(run.body.empty());
}

TEST(GenerationTest, AnErrorAfterTheFirstChunkIsAnEvent) {
  Running run(ApiKind::kCompletion, R"({"prompt": "p", "stream": true})");
  run.stream().Push(TextEvent("a"));
  EXPECT_EQ(run.Poll(), State::kPause);
  run.stream().Push(ErrorEvent(CancelStatus(CancelReason::kDrain)));
  EXPECT_EQ(run.Poll(), State::kBroken);
  const std::vector<Json> events = run.Events();
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[1]["error"]["type"], "server_error");
}

TEST(GenerationTest, DroppingItCancelsWhatIsUnfinished) {
  Running run(ApiKind::kCompletion, R"({"prompt": ["p", "q"]})");
  run.stream(0).Push(FinishEvent());
  EXPECT_EQ(run.Poll(), State::kWaiting);
  run.answer.reset();
  EXPECT_FALSE(run.stream(0).cancelled());
  EXPECT_EQ(run.stream(1).cancelled(), CancelReason::kClientGone);
}

TEST(GenerationTest, OnePollDoesNotTakeEverything) {
  Running run(ApiKind::kCompletion, R"({"prompt": "p", "stream": true})");
  for (int i = 0; i < 100; ++i) run.stream().Push(TextEvent(std::string(10'000, 'x'), {1}));
  EXPECT_EQ(run.Poll(), State::kChunk);
  EXPECT_LT(run.body.size(), 300'000u);
  EXPECT_GT(run.stream().unread(), 50u);
}

}  // namespace
}  // namespace millrace
