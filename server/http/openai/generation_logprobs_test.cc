// Echoes, log-probabilities and tokens in the answers of generations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "server/http/openai/generation_test_util.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using State = Answer::State;

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

}  // namespace
}  // namespace millrace
