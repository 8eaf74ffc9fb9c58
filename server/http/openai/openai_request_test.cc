#include "server/http/openai/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "server/http/openai/openai_request_test_util.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;

TEST(OpenAiRequestTest, BeginsAsTheModelWantsIt) {
  const DefaultsOf defaults = [](const std::string& model) {
    return model == "m"
               ? SamplingDefaults{.params = {.temperature = 0.5f, .top_k = 7}, .max_tokens = 9}
               : SamplingDefaults{};
  };
  const auto chat = ParseApiRequest(
      ApiKind::kChat,
      R"({"model": "m", "messages": [{"role": "user", "content": "x"}], "top_k": 3})", defaults);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->options.temperature, 0.5f);
  EXPECT_EQ(chat->options.top_k, 3);
  EXPECT_EQ(chat->options.default_max_tokens, 9);
  const auto longer = ParseApiRequest(
      ApiKind::kChat,
      R"({"model": "m", "messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 20})",
      defaults);
  ASSERT_TRUE(longer.ok()) << longer.status();
  EXPECT_EQ(longer->options.max_tokens, 20);
  const auto completion =
      ParseApiRequest(ApiKind::kCompletion, R"({"model": "m", "prompt": "x"})", defaults);
  ASSERT_TRUE(completion.ok()) << completion.status();
  EXPECT_EQ(completion->options.temperature, 0.5f);
  EXPECT_EQ(completion->options.max_tokens, 9);  // fewer than OpenAI's 16
}

TEST(OpenAiRequestTest, DefaultsAreOpenAis) {
  const ApiRequest completion = Parsed(ApiKind::kCompletion, kCompletion);
  EXPECT_EQ(completion.model, "m");
  ASSERT_EQ(completion.prompts.size(), 1u);
  EXPECT_EQ(std::get<std::string>(completion.prompts[0]), "p");
  EXPECT_EQ(completion.options.max_tokens, 16);
  EXPECT_EQ(completion.options.temperature, 1.0f);
  EXPECT_FALSE(completion.stream);
  EXPECT_FALSE(completion.options.logprobs.has_value());

  const ApiRequest chat = Parsed(ApiKind::kChat, kChat);
  EXPECT_FALSE(chat.options.max_tokens.has_value());
  const auto& messages = std::get<Chat>(chat.prompts.at(0)).messages;
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].role, "user");
  EXPECT_EQ(messages[0].content, "hi");
}

TEST(OpenAiRequestTest, EveryHonouredFieldArrives) {
  const ApiRequest request = Parsed(ApiKind::kCompletion, R"({
      "prompt": [1, 2], "stream": true, "stream_options": {"include_usage": true},
      "max_tokens": 5, "temperature": 0.5, "top_p": 0.25, "stop": ["a", "b"], "seed": -1,
      "echo": true, "logprobs": 3, "top_k": -1, "min_p": 0.125, "min_tokens": 2,
      "ignore_eos": true, "stop_token_ids": [4, 5], "include_stop_str_in_output": true,
      "skip_special_tokens": false, "return_token_ids": true, "priority": -3,
      "user": "u", "metadata": {"a": "b"}, "store": false, "service_tier": "auto"})");
  EXPECT_EQ(request.model, "");
  EXPECT_THAT(std::get<std::vector<Token>>(request.prompts.at(0)), ElementsAre(1, 2));
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.include_usage);
  EXPECT_TRUE(request.echo);
  EXPECT_TRUE(request.return_token_ids);
  const GenerateRequest& options = request.options;
  EXPECT_EQ(options.max_tokens, 5);
  EXPECT_EQ(options.temperature, 0.5f);
  EXPECT_EQ(options.top_p, 0.25f);
  EXPECT_THAT(options.stop, ElementsAre("a", "b"));
  EXPECT_EQ(options.seed, ~uint64_t{0});
  EXPECT_TRUE(options.echo);
  EXPECT_EQ(options.logprobs, 3);
  EXPECT_EQ(options.top_k, -1);
  EXPECT_EQ(options.min_p, 0.125f);
  EXPECT_EQ(options.min_tokens, 2);
  EXPECT_TRUE(options.ignore_eos);
  EXPECT_THAT(options.stop_token_ids, ElementsAre(4, 5));
  EXPECT_TRUE(options.include_stop_str_in_output);
  EXPECT_FALSE(options.skip_special_tokens);
  EXPECT_EQ(options.priority, -3);
}

TEST(OpenAiRequestTest, ChatsOwnFieldsArrive) {
  const ApiRequest request = Parsed(ApiKind::kChat, R"({
      "messages": [{"role": "system", "content": "s", "name": "n"},
                   {"role": "assistant", "content": "a", "refusal": null, "tool_calls": [],
                    "annotations": [], "audio": null, "function_call": null},
                   {"role": "tool", "content": "t", "tool_call_id": "x"},
                   {"role": "developer", "content": [{"type": "text", "text": "1"},
                                                     {"type": "text", "text": "2"}]}],
      "max_completion_tokens": 9, "max_tokens": 9, "logprobs": true, "top_logprobs": 20,
      "stop": "x", "prediction": {"type": "content", "content": [{"type": "text", "text": "p"}]}})");
  EXPECT_EQ(request.options.prediction, "p");
  const auto& messages = std::get<Chat>(request.prompts.at(0)).messages;
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[0].name, "n");
  EXPECT_EQ(messages[3].content, "1\n2");
  EXPECT_THAT(messages[3].part_sizes, ElementsAre(1, 1));
  EXPECT_EQ(request.options.max_tokens, 9);
  EXPECT_EQ(request.options.logprobs, 20);
  EXPECT_THAT(request.options.stop, ElementsAre("x"));
  EXPECT_EQ(Parsed(ApiKind::kChat, With(kChat, "logprobs", "true")).options.logprobs, 0);
}

TEST(OpenAiRequestTest, ArgumentsOfEarlierCallsComeInManyForms) {
  const auto read = [](std::string_view arguments) {
    const ApiRequest request =
        Parsed(ApiKind::kChat,
               StrCat(R"({"messages": [{"role": "assistant", "content": null, "tool_calls": [
                   {"id": "1", "type": "function", "function": {"name": "f")",
                      arguments, "}}]}]}"));
    return std::get<Chat>(request.prompts.at(0)).messages[0].tool_calls[0].arguments;
  };
  EXPECT_EQ(read(R"(, "arguments": "{\"a\": 1}")"), R"({"a": 1})");
  EXPECT_EQ(read(R"(, "arguments": {"z": 1, "a": [2]})"), R"({"z":1,"a":[2]})");
  EXPECT_EQ(read(R"(, "arguments": null)"), "{}");
  EXPECT_EQ(read(""), "{}");
  EXPECT_EQ(read(R"(, "arguments": [])"), "[]");
  EXPECT_EQ(Refused(ApiKind::kChat,
                    R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "1",
                        "function": {"name": "f", "arguments": 5}}]}]})")
                .param,
            "messages[0].tool_calls[0].function.arguments");
}

TEST(OpenAiRequestTest, AnAnswerOfReasoningAloneComesBack) {
  const ApiRequest request = Parsed(
      ApiKind::kChat,
      R"({"messages": [{"role": "assistant", "content": null, "reasoning_content": "Hm."}]})");
  EXPECT_EQ(std::get<Chat>(request.prompts.at(0)).messages[0].reasoning, "Hm.");
}

TEST(OpenAiRequestTest, TemplateVariablesKeepTheirOrder) {
  const ApiRequest request =
      Parsed(ApiKind::kChat, R"({"messages": [{"role": "user", "content": "hi"}],
          "chat_template_kwargs": {"z": {"y": 1, "b": 2}, "a": 1}})");
  EXPECT_EQ(std::get<Chat>(request.prompts.at(0)).template_kwargs, R"({"z":{"y":1,"b":2},"a":1})");
}

TEST(OpenAiRequestTest, APromptListIsAChoiceEach) {
  EXPECT_EQ(Parsed(ApiKind::kCompletion, R"({"prompt": ["a", "b", "c"]})").prompts.size(), 3u);
  EXPECT_EQ(Parsed(ApiKind::kCompletion, R"({"prompt": [[1], [2, 3]]})").prompts.size(), 2u);
  EXPECT_EQ(Parsed(ApiKind::kCompletion, R"({"prompt": ["a", [2, 3]]})").prompts.size(), 2u);
  EXPECT_EQ(Parsed(ApiKind::kCompletion, R"({"prompt": ["a"]})").prompts.size(), 1u);
  std::string many = "[\"a\"";
  for (size_t i = 1; i < kMaxPrompts; ++i) many += ",\"a\"";
  EXPECT_EQ(Parsed(ApiKind::kCompletion, With(kCompletion, "prompt", many + "]")).prompts.size(),
            kMaxPrompts);
  EXPECT_EQ(Refused(ApiKind::kCompletion, With(kCompletion, "prompt", many + ",\"a\"]")).param,
            "prompt");
}

TEST(OpenAiRequestTest, ReturnTokenIdsAsksTheEngineForThePromptsTokens) {
  const ApiRequest request =
      Parsed(ApiKind::kCompletion, With(kCompletion, "return_token_ids", "true"));
  EXPECT_TRUE(request.options.echo);
  EXPECT_FALSE(request.echo);
}

TEST(OpenAiRequestTest, AChatSaysHowItIsRendered) {
  const Chat usual = std::get<Chat>(Parsed(ApiKind::kChat, kChat).prompts.at(0));
  EXPECT_TRUE(usual.add_generation_prompt);
  EXPECT_FALSE(usual.continue_final_message);
  EXPECT_EQ(usual.template_kwargs, "");
  const std::string body =
      With(With(With(kChat, "add_generation_prompt", "false"), "continue_final_message", "true"),
           "chat_template_kwargs", R"({"enable_thinking": false, "x": {"y": [1, "é"]}})");
  const Chat chat = std::get<Chat>(Parsed(ApiKind::kChat, body).prompts.at(0));
  EXPECT_FALSE(chat.add_generation_prompt);
  EXPECT_TRUE(chat.continue_final_message);
  EXPECT_EQ(Json::parse(chat.template_kwargs),
            Json::parse(R"({"enable_thinking": false, "x": {"y": [1, "é"]}})"));
}

TEST(OpenAiRequestTest, AnAnswerGoesOnWithoutItsHeader) {
  EXPECT_EQ(Refused(ApiKind::kChat, With(kChat, "continue_final_message", "true")).param,
            "continue_final_message");
}

TEST(OpenAiRequestTest, TemplateVariablesAreTheTemplatesOwn) {
  const auto param = [](const char* kwargs) {
    return Refused(ApiKind::kChat, With(kChat, "chat_template_kwargs", kwargs)).param;
  };
  EXPECT_EQ(param("[]"), "chat_template_kwargs");
  EXPECT_EQ(param("\"x\""), "chat_template_kwargs");
  for (const char* name : {"messages", "conversation", "tools", "documents", "chat_template",
                           "tokenize", "add_generation_prompt", "continue_final_message"}) {
    EXPECT_EQ(param(StrCat("{\"", name, "\": []}").c_str()), StrCat("chat_template_kwargs.", name));
  }
}

TEST(OpenAiRequestTest, APromptMayHaveSeveralChoices) {
  EXPECT_EQ(Parsed(ApiKind::kChat, kChat).n, 1);
  EXPECT_EQ(Parsed(ApiKind::kChat, With(kChat, "n", "128")).n, 128);
  const std::string two = With(kCompletion, "prompt", R"(["a", "b"])");
  EXPECT_EQ(Parsed(ApiKind::kCompletion, With(two, "n", "64")).n, 64);
  for (const char* bad : {"0", "-1", "65", "2.5", "\"1\"", "4294967297"}) {
    EXPECT_EQ(Refused(ApiKind::kCompletion, With(two, "n", bad)).param, "n") << bad;
  }
}

TEST(OpenAiRequestTest, TheBestOfMoreCandidatesMayBeWanted) {
  const std::string three = With(kCompletion, "n", "3");
  EXPECT_EQ(Parsed(ApiKind::kCompletion, three).options.n, 3);
  EXPECT_FALSE(Parsed(ApiKind::kCompletion, With(three, "best_of", "3")).options.mean_logprob);
  const ApiRequest request = Parsed(ApiKind::kCompletion, With(three, "best_of", "5"));
  EXPECT_EQ(request.n, 3);
  EXPECT_EQ(request.options.n, 5);
  EXPECT_TRUE(request.options.mean_logprob);
  EXPECT_EQ(Refused(ApiKind::kCompletion, With(three, "best_of", "2")).param, "best_of");
  const std::string stream = With(three, "stream", "true");
  EXPECT_EQ(Refused(ApiKind::kCompletion, With(stream, "best_of", "4")).param, "best_of");
  EXPECT_EQ(Parsed(ApiKind::kCompletion, With(stream, "best_of", "3")).options.n, 3);
  const std::string two = With(three, "prompt", R"(["a", "b"])");
  EXPECT_EQ(Refused(ApiKind::kCompletion, With(two, "best_of", "65")).param, "best_of");
}

TEST(OpenAiRequestTest, PenaltiesAndBiasesAreRead) {
  const std::string body =
      With(With(With(With(With(kChat, "presence_penalty", "-0.5"), "frequency_penalty", "1"),
                     "repetition_penalty", "1.25"),
                "typical_p", "0.75"),
           "logit_bias", R"({"7": -100, "12": 2.5})");
  const GenerateRequest options = Parsed(ApiKind::kChat, body).options;
  EXPECT_EQ(options.presence_penalty, -0.5f);
  EXPECT_EQ(options.frequency_penalty, 1);
  EXPECT_EQ(options.repetition_penalty, 1.25f);
  EXPECT_EQ(options.typical_p, 0.75f);
  std::map<Token, float> biases;
  for (const LogitBias& biased : options.logit_bias) biases[biased.token] = biased.bias;
  EXPECT_EQ(biases, (std::map<Token, float>{{7, -100}, {12, 2.5f}}));

  std::string many = "{";
  for (int i = 0; i <= 1024; ++i) many += StrCat(i > 0 ? "," : "", "\"", i, "\":1");
  EXPECT_EQ(Refused(ApiKind::kChat, With(kChat, "logit_bias", many + "}")).param, "logit_bias");
}

TEST(OpenAiRequestTest, TheTwoLimitsOfAChatMustAgree) {
  const std::string body = With(kChat, "max_tokens", "5");
  EXPECT_EQ(Refused(ApiKind::kChat, With(body, "max_completion_tokens", "6")).param, "max_tokens");
}

TEST(OpenAiRequestTest, WhatChangesNothingIsAbsent) {
  const std::vector<FieldCase> both = {
      {"n", "1"},
      {"n", "null"},
      {"presence_penalty", "0"},
      {"frequency_penalty", "0.0"},
      {"logit_bias", "{}"},
      {"repetition_penalty", "1.0"},
      {"store", "false"},
      {"service_tier", "\"default\""},
      {"stop", "[]"},
      {"stop", "null"},
      {"stream_options", "{}"},
      {"stream_options", R"({"include_usage": false})"},
      {"temperature", "null"},
      {"max_tokens", "null"},
      {"model", "null"},
      {"guided_json", "null"},
      {"use_beam_search", "false"},
      {"top_k", "0"},
      {"bad_words", "[]"},
  };
  const std::vector<FieldCase> completion = {
      {"best_of", "1"}, {"suffix", "\"\""}, {"logprobs", "null"}, {"add_special_tokens", "true"}};
  const std::vector<FieldCase> chat = {{"tools", "[]"},
                                       {"tool_choice", "\"none\""},
                                       {"tool_choice", "\"auto\""},
                                       {"parallel_tool_calls", "true"},
                                       {"response_format", R"({"type": "text"})"},
                                       {"modalities", R"(["text"])"},
                                       {"functions", "[]"},
                                       {"reasoning_effort", "\"none\""},
                                       {"verbosity", "\"medium\""},
                                       {"logprobs", "false"},
                                       {"top_logprobs", "0"},
                                       {"web_search_options", "null"}};
  for (const ApiKind kind : {ApiKind::kCompletion, ApiKind::kChat}) {
    for (const FieldCase& c : both) Parsed(kind, With(Body(kind), c.field, c.value));
  }
  for (const FieldCase& c : completion) {
    Parsed(ApiKind::kCompletion, With(kCompletion, c.field, c.value));
  }
  for (const FieldCase& c : chat) Parsed(ApiKind::kChat, With(kChat, c.field, c.value));
}

TEST(TokenizeRequestTest, TakesATextOrMessages) {
  auto text = ParseTokenizeRequest(R"({"prompt": "", "add_special_tokens": false,
                                       "return_token_strs": true})");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->request.add_special_tokens, false);
  EXPECT_TRUE(text->request.return_token_strs);
  auto chat = ParseTokenizeRequest(R"({"messages": [{"role": "user", "content": "x"}],
                                       "add_generation_prompt": false})");
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_FALSE(std::get<Chat>(chat->request.prompt).add_generation_prompt);
  for (std::string_view bad :
       {R"({})", R"({"prompt": [1]})", R"({"prompt": "x", "messages": []})", R"({"messages": []})",
        R"({"prompt": "x", "add_generation_prompt": true})", R"({"prompt": "x", "y": 1})",
        R"({"messages": [{"role": "user", "content": "x"}], "chat_template": "x"})"}) {
    EXPECT_FALSE(ParseTokenizeRequest(bad).ok()) << bad;
  }
}

TEST(DetokenizeRequestTest, TakesTokens) {
  auto request = ParseDetokenizeRequest(R"({"model": "m", "tokens": [1, 2]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->model, "m");
  EXPECT_THAT(request->tokens, ElementsAre(1, 2));
  EXPECT_TRUE(ParseDetokenizeRequest(R"({"tokens": []})").ok());
  for (std::string_view bad : {"{}", R"({"tokens": "x"})", R"({"tokens": [1.5]})",
                               R"({"tokens": [99999999999]})", R"({"tokens": [1], "x": 1})"}) {
    EXPECT_FALSE(ParseDetokenizeRequest(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace millrace
