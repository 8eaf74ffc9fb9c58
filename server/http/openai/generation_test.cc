#include "server/http/openai/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/strings.h"
#include "server/http/json/json_reader.h"
#include "server/http/scripted_engine_test_util.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using State = Answer::State;

// One generation, polled by hand.
struct Running {
  Running(ApiKind kind, std::string_view body) {
    auto request = ParseApiRequest(kind, body);
    EXPECT_TRUE(request.ok()) << request.status();
    answer =
        std::make_unique<Generation>(*std::move(request), "cmpl-1", engine, [this] { ++wakes; });
  }

  State Poll() { return answer->Poll(response, body); }
  ScriptedStream& stream(size_t n = 0) { return *engine.WaitStream(n); }

  // The JSON of each "data:" line; "[DONE]" as a string.
  std::vector<Json> Events() const {
    std::vector<Json> events;
    for (const std::string& part : std::vector<std::string>(absl::StrSplit(body, "\n\n"))) {
      if (part.empty()) continue;
      EXPECT_EQ(part.substr(0, 6), "data: ");
      EXPECT_EQ(part.find('\n'), part.npos);
      events.push_back(part == "data: [DONE]" ? Json("[DONE]") : Json::parse(part.substr(6)));
    }
    return events;
  }

  ScriptedEngine engine;
  int wakes = 0;
  std::unique_ptr<Generation> answer;
  HttpResponse response;
  std::string body;
};

TokenDetail Detail(std::string bytes, std::optional<float> logprob,
                   std::vector<TokenAlternative> top = {}) {
  return {.token = 'x', .bytes = std::move(bytes), .logprob = logprob, .top = std::move(top)};
}

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

// The engine echoes a prompt once, and each of its choices begins with it.
TEST(GenerationTest, AnEchoIsShownInEachChoice) {
  for (const bool stream : {false, true}) {
    Running run(ApiKind::kCompletion, StrCat(R"({"prompt": "p", "n": 2, "echo": true, "logprobs": 0,
                                                 "stream": )",
                                             stream ? "true}" : "false}"));
    OutputEvent answer = TextEvent("b", {4});
    answer.details = {Detail("b", -2.0f)};
    run.stream(1).Push(std::move(answer));
    run.stream(1).Push(FinishEvent());
    EXPECT_EQ(run.Poll(), State::kWaiting);
    run.stream(0).Push(
        {.echo = true, .text = "p", .tokens = {1}, .details = {Detail("p", std::nullopt)}});
    run.stream(0).Push(FinishEvent());
    EXPECT_EQ(run.Poll(), stream ? State::kEnd : State::kWhole);
    std::vector<std::string> texts(2), tokens(2);
    std::vector<Json> parts = run.Events();
    if (!stream) parts = {Json::parse(run.response.body)};
    for (const Json& part : parts) {
      if (!part.is_object()) continue;
      for (const Json& choice : part["choices"]) {
        texts[choice["index"]] += choice["text"];
        if (choice["logprobs"].is_null()) continue;
        for (const Json& token : choice["logprobs"]["tokens"]) tokens[choice["index"]] += token;
      }
    }
    EXPECT_THAT(texts, ElementsAre("p", "pb"));
    EXPECT_THAT(tokens, ElementsAre("p", "pb"));
  }
}

// The connections of a thread do not wait until one has made megabytes of log-probabilities.
TEST(GenerationTest, TheLogprobsOfALongPromptAreTakenInByTurns) {
  constexpr size_t kTokens = 600;
  OutputEvent echo = {.echo = true, .text = "p"};
  echo.tokens.resize(kTokens);
  echo.details.push_back(Detail("p", std::nullopt));
  for (size_t i = 1; i < kTokens; ++i) echo.details.push_back(Detail(StrCat(i), -1.0f));
  for (const bool stream : {false, true}) {
    Running run(ApiKind::kCompletion,
                StrCat(R"({"prompt": "p", "echo": true, "logprobs": 1, )",
                       stream ? R"("stream": true})" : R"("prompt_logprobs": 1})"));
    run.stream().Push(echo);
    run.stream().Push(FinishEvent());
    for (const int wakes : {2, 3}) {
      EXPECT_EQ(run.Poll(), State::kWaiting);
      EXPECT_EQ(run.wakes, wakes);  // it asks to be polled again
      EXPECT_THAT(run.body, IsEmpty());
    }
    EXPECT_EQ(run.Poll(), stream ? State::kEnd : State::kWhole);
    EXPECT_EQ(run.wakes, 3);
    const Json choice = (stream ? run.Events()[0] : Json::parse(run.response.body))["choices"][0];
    EXPECT_THAT(choice["logprobs"]["tokens"], SizeIs(kTokens));
    EXPECT_EQ(choice["logprobs"]["tokens"].back(), StrCat(kTokens - 1));
    if (stream) continue;
    EXPECT_THAT(choice["prompt_logprobs"], SizeIs(kTokens));
    EXPECT_EQ(choice["prompt_logprobs"][kTokens - 1]["120"]["decoded_token"], StrCat(kTokens - 1));
  }
}

TEST(GenerationTest, LogprobsThatNobodySeesTakeNoTurns) {
  OutputEvent echo = {.echo = true, .text = "p", .tokens = {1}};
  for (size_t i = 0; i < 600; ++i) echo.details.push_back(Detail("p", -1.0f));
  Running ids(ApiKind::kCompletion,
              R"({"prompt": "p", "return_token_ids": true, "logprobs": 1, "stream": true})");
  ids.stream().Push(echo);
  ids.stream().Push(FinishEvent());
  ASSERT_EQ(ids.Poll(), State::kEnd);
  EXPECT_EQ(ids.Events()[0]["choices"][0]["prompt_token_ids"], Json::parse("[1]"));
  // A chat shows its prompt in the first choice alone.
  Running chat(ApiKind::kChat, R"({"messages": [{"role": "user", "content": "p"}], "n": 2,
                                   "prompt_logprobs": 1})");
  chat.stream(0).Push(echo);
  for (size_t i = 0; i < 2; ++i) chat.stream(i).Push(FinishEvent());
  EXPECT_EQ(chat.Poll(), State::kWaiting);
  EXPECT_EQ(chat.Poll(), State::kWaiting);
  EXPECT_EQ(chat.Poll(), State::kWhole);
  EXPECT_THAT(Json::parse(chat.response.body)["prompt_logprobs"], SizeIs(600));
}

// An echo in all choices takes no more memory at a time than in one.
TEST(GenerationTest, AnEchoIsShownInOneChoiceAfterAnother) {
  constexpr size_t kChoices = 8;
  Running run(ApiKind::kCompletion,
              R"({"prompt": "p", "n": 8, "echo": true, "stream": true, "max_tokens": 0})");
  const std::string prompt(200'000, 'p');
  run.stream(0).Push({.echo = true, .text = prompt});
  for (size_t i = 0; i < kChoices; ++i) run.stream(i).Push(FinishEvent());
  size_t shown = 0;
  State state = State::kChunk;
  for (int polls = 0; state == State::kChunk && polls < 20; ++polls) {
    state = run.Poll();
    EXPECT_LT(run.body.size(), 600'000u);
    for (const Json& event : run.Events()) {
      if (event.is_object() && event["choices"][0]["text"] == prompt) ++shown;
    }
    run.body.clear();
  }
  EXPECT_EQ(state, State::kEnd);
  EXPECT_EQ(shown, kChoices);
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

TEST(GenerationTest, CompletionLogprobsAreFourListsOverEchoAndAnswer) {
  Running run(ApiKind::kCompletion, R"({"prompt": "é", "echo": true, "logprobs": 2})");
  EXPECT_TRUE(run.engine.request().echo);
  run.stream().Push({.echo = true,
                     .text = "né",
                     .tokens = {1, 2},
                     .details = {Detail("n", std::nullopt),
                                 Detail("é", -1.5f, {{5, "a", -0.5f}, {6, "b", -1.0f}})}});
  // The two halves of a character, and alternatives of which one is the chosen token itself.
  OutputEvent event = TextEvent("â", {3, 4});
  event.details = {Detail("\xC3", -0.25f, {{'x', "\xC3", -0.25f}, {6, "a", -2.0f}}),
                   Detail("\xA2", -0.125f, {{7, "q", -1.0f}, {8, "q", -3.0f}})};
  run.stream().Push(std::move(event));
  run.stream().Push(FinishEvent());
  EXPECT_EQ(run.Poll(), State::kWhole);
  const Json choice = Json::parse(run.response.body)["choices"][0];
  EXPECT_EQ(choice["text"], "néâ");
  EXPECT_EQ(choice["logprobs"], Json::parse(R"({
      "tokens": ["n", "é", "bytes:\\xc3", "bytes:\\xa2"],
      "token_logprobs": [null, -1.5, -0.25, -0.125],
      "top_logprobs": [null, {"é": -1.5, "a": -0.5, "b": -1.0},
                       {"bytes:\\xc3": -0.25, "a": -2.0}, {"bytes:\\xa2": -0.125, "q": -1.0}],
      "text_offset": [0, 1, 2, 3]})"));
}

// The engine is asked once for as many alternatives as either wants; each shows its own number.
TEST(GenerationTest, PromptLogprobsAreNamedByTokens) {
  for (const bool chat : {false, true}) {
    Running run(chat ? ApiKind::kChat : ApiKind::kCompletion,
                StrCat(chat ? R"({"messages": [{"role": "user", "content": "p"}], "logprobs": true)"
                            : R"({"prompt": "né", "logprobs": 0)",
                       R"(, "n": 2, "prompt_logprobs": 1})"));
    EXPECT_TRUE(run.engine.request().echo);
    EXPECT_EQ(run.engine.request().logprobs, 1);
    TokenDetail second = Detail("é", -1.5f, {{5, "a", -0.5f}});
    second.token = 9;
    second.rank = 4;
    TokenDetail likeliest = Detail("\xC3", -0.5f, {{7, "\xC3", -0.5f}});
    likeliest.token = 7;
    likeliest.rank = 1;
    run.stream(0).Push({.echo = true,
                        .text = "né",
                        .tokens = {1, 9, 7},
                        .details = {Detail("n", std::nullopt), second, likeliest}});
    for (size_t i = 0; i < 2; ++i) {
      OutputEvent event = TextEvent("b", {3});
      event.details = {Detail("b", -0.25f, {{6, "c", -0.125f}})};
      run.stream(i).Push(std::move(event));
      run.stream(i).Push(FinishEvent());
    }
    EXPECT_EQ(run.Poll(), State::kWhole);
    const Json json = Json::parse(run.response.body);
    const Json expected = Json::parse(R"([null,
        {"9": {"logprob": -1.5, "rank": 4, "decoded_token": "é"},
         "5": {"logprob": -0.5, "rank": 1, "decoded_token": "a"}},
        {"7": {"logprob": -0.5, "rank": 1, "decoded_token": "\\xc3"}}])");
    const Json& choice = json["choices"][1];
    EXPECT_EQ(chat ? json["prompt_logprobs"] : choice["prompt_logprobs"], expected);
    if (chat) {
      EXPECT_EQ(choice["message"]["content"], "b");
      EXPECT_EQ(choice["logprobs"]["content"][0]["top_logprobs"], Json::array());
    } else {
      EXPECT_EQ(choice["text"], "b");
      EXPECT_EQ(choice["logprobs"]["top_logprobs"], Json::parse(R"([{"b": -0.25}])"));
    }
  }
}

TEST(GenerationTest, PromptLogprobsAloneShowNoneOfTheAnswer) {
  Running run(ApiKind::kCompletion, R"({"prompt": "n", "prompt_logprobs": 0})");
  run.stream().Push(
      {.echo = true, .text = "n", .tokens = {1}, .details = {Detail("n", std::nullopt)}});
  OutputEvent event = TextEvent("b", {3});
  event.details = {Detail("b", -0.25f)};
  run.stream().Push(std::move(event));
  run.stream().Push(FinishEvent());
  EXPECT_EQ(run.Poll(), State::kWhole);
  const Json choice = Json::parse(run.response.body)["choices"][0];
  EXPECT_EQ(choice["text"], "b");
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_EQ(choice["prompt_logprobs"], Json::parse("[null]"));
}

TEST(GenerationTest, TextOffsetsLeaveOutWhatIsNotShown) {
  Running run(ApiKind::kCompletion, R"({"prompt": "n", "echo": true, "logprobs": 0})");
  OutputEvent echo = {.echo = true,
                      .text = "n",
                      .tokens = {1, 2},
                      .details = {Detail("<s>", std::nullopt), Detail("n", -1.5f)}};
  echo.details[0].shown = false;
  run.stream().Push(std::move(echo));
  OutputEvent event = TextEvent("a", {3});
  event.details = {Detail("a", -0.25f)};
  run.stream().Push(std::move(event));
  run.stream().Push(FinishEvent());
  EXPECT_EQ(run.Poll(), State::kWhole);
  const Json choice = Json::parse(run.response.body)["choices"][0];
  EXPECT_EQ(choice["text"], "na");
  EXPECT_EQ(choice["logprobs"]["tokens"], Json::parse(R"(["<s>", "n", "a"])"));
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json::parse("[0, 0, 1]"));
}

TEST(GenerationTest, TextOffsetsCountWhatReplacesBrokenCharacters) {
  Running run(ApiKind::kCompletion, R"({"prompt": "p", "logprobs": 0})");
  OutputEvent event = TextEvent("\uFFFD\uFFFD\uFFFD(é", {1, 2, 3, 4, 5, 6});
  for (const char* bytes : {"\x80", "\x81", "\xC3", "(", "\xC3", "\xA9"}) {
    event.details.push_back(Detail(bytes, -0.5f));
  }
  run.stream().Push(std::move(event));
  run.stream().Push(FinishEvent());
  EXPECT_EQ(run.Poll(), State::kWhole);
  EXPECT_EQ(Json::parse(run.response.body)["choices"][0]["logprobs"]["text_offset"],
            Json::parse("[0, 1, 2, 3, 4, 5]"));
}

TEST(GenerationTest, ChatLogprobsHaveBytes) {
  Running run(ApiKind::kChat, R"({"messages": [{"role": "user", "content": "p"}],
                                  "logprobs": true, "top_logprobs": 1, "stream": true})");
  OutputEvent event = TextEvent("", {3});
  event.details = {Detail(" \xE2\x80", -0.5f, {{6, "a", -0.25f}})};
  run.stream().Push(std::move(event));
  run.stream().Push(FinishEvent());
  EXPECT_EQ(run.Poll(), State::kEnd);
  const std::vector<Json> events = run.Events();
  ASSERT_THAT(events, SizeIs(4));  // role, the token, the end, [DONE]
  EXPECT_EQ(events[1]["choices"][0]["logprobs"], Json::parse(R"({"refusal": null, "content": [
      {"token": " \\xe2\\x80", "logprob": -0.5, "bytes": [32, 226, 128],
       "top_logprobs": [{"token": "a", "logprob": -0.25, "bytes": [97]}]}]})"));
  EXPECT_TRUE(events[2]["choices"][0]["logprobs"].is_null());
}

TEST(GenerationTest, TokenIdsComeWithTheirText) {
  const auto push = [](Running& run) {
    run.stream().Push({.echo = true, .text = "pq", .tokens = {7, 8}});
    run.stream().Push(TextEvent("a", {1, 2}));
    OutputEvent last = FinishEvent();
    last.tokens = {3};
    run.stream().Push(std::move(last));
  };
  Running whole(ApiKind::kCompletion, R"({"prompt": "p", "return_token_ids": true})");
  push(whole);
  EXPECT_EQ(whole.Poll(), State::kWhole);
  const Json choice = Json::parse(whole.response.body)["choices"][0];
  EXPECT_EQ(choice["text"], "a");
  EXPECT_EQ(choice["prompt_token_ids"], Json::parse("[7, 8]"));
  EXPECT_EQ(choice["token_ids"], Json::parse("[1, 2, 3]"));

  Running stream(ApiKind::kCompletion,
                 R"({"prompt": "p", "return_token_ids": true, "stream": true})");
  push(stream);
  EXPECT_EQ(stream.Poll(), State::kEnd);
  const std::vector<Json> events = stream.Events();
  ASSERT_THAT(events, SizeIs(3));
  EXPECT_EQ(events[0]["choices"][0]["prompt_token_ids"], Json::parse("[7, 8]"));
  EXPECT_EQ(events[0]["choices"][0]["token_ids"], Json::parse("[1, 2]"));
  EXPECT_FALSE(events[1]["choices"][0].contains("prompt_token_ids"));
  EXPECT_EQ(events[1]["choices"][0]["token_ids"], Json::parse("[3]"));

  Running chat(ApiKind::kChat, R"({"messages": [{"role": "user", "content": "p"}],
                                   "return_token_ids": true, "stream": true})");
  push(chat);
  EXPECT_EQ(chat.Poll(), State::kEnd);
  EXPECT_EQ(chat.Events()[0]["prompt_token_ids"], Json::parse("[7, 8]"));
  EXPECT_FALSE(chat.Events()[1].contains("prompt_token_ids"));
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
