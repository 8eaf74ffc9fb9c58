// Which requests are refused, and that the refusal names the field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/http/openai/openai_request_test_util.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

void ExpectRefused(ApiKind kind, const std::vector<FieldCase>& cases) {
  for (const FieldCase& c : cases) {
    const ApiError error = Refused(kind, With(Body(kind), c.field, c.value));
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.type, "invalid_request_error");
    EXPECT_EQ(error.param, c.param.empty() ? c.field : c.param) << c.field << ": " << c.value;
    EXPECT_THAT(error.message, HasSubstr(error.param));
    EXPECT_FALSE(error.code.empty());
  }
}

const std::vector<FieldCase> kBothRefused = {
    {"temperature", "\"hot\""},
    {"temperature", "true"},
    {"temperature", "1e300"},
    {"top_p", "[]"},
    {"top_k", "1.5"},
    {"min_p", "{}"},
    {"min_tokens", "-9999999999"},
    {"max_tokens", "\"9\""},
    {"max_tokens", "4294967296"},
    {"max_tokens", "0"},
    {"max_tokens", "-1"},
    {"stream", "1"},
    {"stream", "\"true\""},
    {"stream_options", "true"},
    {"stream_options", R"({"include_usage": true})"},
    {"stream_options", R"({"include_usage": 1})", "stream_options.include_usage"},
    {"stream_options", R"({"include_obfuscation": true})", "stream_options.include_obfuscation"},
    {"stream_options", R"({"continuous_usage_stats": true})"},
    {"stream_options", R"({"continuous_usage_stats": 1})", "stream_options.continuous_usage_stats"},
    {"stream_options", R"({"whatever": 1})", "stream_options.whatever"},
    {"stop", "1"},
    {"stop", R"(["a", 1])", "stop[1]"},
    {"stop", R"(["","","","","","","","","","","","","","","","",""])"},
    {"seed", "1.5"},
    {"seed", "\"1\""},
    {"model", "1"},
    {"model", "\"\""},
    {"ignore_eos", "0"},
    {"stop_token_ids", "1"},
    {"stop_token_ids", "[1, \"2\"]", "stop_token_ids[1]"},
    {"include_stop_str_in_output", "\"no\""},
    {"skip_special_tokens", "1"},
    {"return_token_ids", "1"},
    {"priority", "1.5"},
    {"user", "1"},
    {"store", "1"},
    {"service_tier", "\"fastest\""},
    {"metadata", "[]"},
    {"metadata", R"({"a": 1})"},
    {"metadata", R"({"0":"","1":"","2":"","3":"","4":"","5":"","6":"","7":"","8":"","9":"",)"
                 R"("10":"","11":"","12":"","13":"","14":"","15":"","16":""})"},
    {"frequency_penalty", "\"1\""},
    {"presence_penalty", "true"},
    {"repetition_penalty", "[1]"},
    {"typical_p", "\"0.9\""},
    {"logit_bias", "[[5, 1]]"},
    {"logit_bias", R"({"five": 1})"},
    {"logit_bias", R"({"5.0": 1})"},
    {"logit_bias", R"({"99999999999": 1})"},
    {"logit_bias", R"({"5": "1"})", "logit_bias.5"},
    {"guided_json", "1"},
    {"guided_regex", "1"},
    {"guided_regex", "\"\""},
    {"guided_choice", "[]"},
    {"guided_choice", "[1]", "guided_choice[0]"},
    {"structured_outputs", "\"a\""},
    {"structured_outputs", R"({"regex": 1})", "structured_outputs.regex"},
    {"structured_outputs", R"({"structural_tag": "x"})", "structured_outputs.structural_tag"},
    {"response_format", "1"},
    {"response_format", R"({"type": "xml"})", "response_format.type"},
    {"response_format", R"({"type": "json_schema"})", "response_format.json_schema"},
    {"response_format", R"({"type": "json_schema", "json_schema": {"a": 1}})",
     "response_format.json_schema.a"},
    {"response_format", R"({"type": "json_schema", "json_schema": {"schema": 1}})",
     "response_format.json_schema.schema"},
    {"use_beam_search", "true"},
    {"prompt_logprobs", "-1"},
    {"prompt_logprobs", "21"},
    {"prompt_logprobs", "true"},
    {"truncate_prompt_tokens", "10"},
    {"vllm_xargs", R"({"a": 1})"},
    {"cache_salt", "\"x\""},
    {"length_penalty", "2"},
    {"no_stop_trim", "true"},
    {"no_stop_trim", "0"},
    {"return_hidden_states", "true"},
    {"separate_reasoning", "1"},
    {"stream_reasoning", "\"no\""},
    {"parallel_tool_calls", "1"},
    {"prompt_cache_key", "1"},
    {"safety_identifier", "[]"},
    {"regex", "1"},
    {"ebnf", "1"},
    {"json_schema", "1"},
    {"lora_path", "\"x\""},
    {"session_params", "{}"},
    {"sampling_seed", "1"},
    {"no_such_field", "1"},
    {"Temperature", "1"},
};

TEST(OpenAiRefusalTest, CompletionRefusalsNameTheField) {
  ExpectRefused(ApiKind::kCompletion, kBothRefused);
}
TEST(OpenAiRefusalTest, ChatRefusalsNameTheField) { ExpectRefused(ApiKind::kChat, kBothRefused); }

const std::vector<FieldCase> kCompletionRefused = {
    {"prompt", "\"\""},
    {"prompt", "[]"},
    {"prompt", "null"},
    {"prompt", "1"},
    {"prompt", "{}"},
    {"prompt", R"(["a", ""])", "prompt[1]"},
    {"prompt", "[[1], []]", "prompt[1]"},
    {"prompt", "[1, \"a\"]", "prompt[1]"},
    {"prompt", "[1.5]", "prompt[0]"},
    {"prompt", "[[[1]]]", "prompt[0][0]"},
    {"prompt", "[true]", "prompt[0]"},
    {"logprobs", "6"},
    {"logprobs", "-1"},
    {"logprobs", "true"},
    {"echo", "1"},
    {"best_of", "0"},
    {"best_of", "129"},
    {"best_of", "1.5"},
    {"prompt_embeds", "\"x\""},
    {"add_special_tokens", "false"},
    {"messages", "[]"},
    {"max_completion_tokens", "1"},
    {"top_logprobs", "1"},
};

const std::vector<FieldCase> kChatRefused = {
    {"messages", "[]"},
    {"messages", "null"},
    {"messages", "\"hi\""},
    {"messages", "[1]", "messages[0]"},
    {"messages", "[{}]", "messages[0].role"},
    {"messages", R"([{"role": "user"}])", "messages[0].content"},
    {"messages", R"([{"role": "user", "content": null}])", "messages[0].content"},
    {"messages", R"([{"role": "user", "content": []}])", "messages[0].content"},
    {"messages", R"([{"role": "user", "content": 1}])", "messages[0].content"},
    {"messages", R"([{"role": "user", "content": ["x"]}])", "messages[0].content[0]"},
    {"messages", R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])",
     "messages[0].content[0].type"},
    {"messages", R"([{"role": "user", "content": [{"type": "text"}]}])",
     "messages[0].content[0].text"},
    {"messages", R"([{"role": "user", "content": [{"type": "text", "text": "", "x": 1}]}])",
     "messages[0].content[0].x"},
    {"messages", R"([{"role": "user", "content": "x"}, {"role": "user", "content": "x", "y": 1}])",
     "messages[1].y"},
    {"messages", R"([{"role": "user", "content": "x", "tool_call_id": "y"}])",
     "messages[0].tool_call_id"},
    {"messages", R"([{"role": "assistant", "content": "x", "tool_calls": [{}]}])",
     "messages[0].tool_calls[0].id"},
    {"messages", R"([{"role": "assistant", "content": "x", "refusal": "no"}])",
     "messages[0].refusal"},
    {"messages", R"([{"role": "user", "content": "x", "name": 1}])", "messages[0].name"},
    {"max_completion_tokens", "0"},
    {"max_completion_tokens", "1.5"},
    {"logprobs", "1"},
    {"top_logprobs", "1"},
    {"top_logprobs", "21"},
    {"top_logprobs", "-1"},
    {"audio", "{}"},
    {"function_call", R"({"name": "f"})"},
    {"functions", R"([{"name": "f"}])"},
    {"modalities", R"(["text", "audio"])"},
    {"moderation", R"({"model": "m"})"},
    {"prediction", "\"x\""},
    {"prediction", R"({"content": "x"})", "prediction.type"},
    {"prediction", R"({"type": "text", "content": "x"})", "prediction.type"},
    {"prediction", R"({"type": "content"})", "prediction.content"},
    {"prediction", R"({"type": "content", "content": 1})", "prediction.content"},
    {"prediction", R"({"type": "content", "content": []})", "prediction.content"},
    {"prediction", R"({"type": "content", "content": [{"type": "image_url"}]})",
     "prediction.content[0].type"},
    {"prediction", R"({"type": "content", "content": "x", "weight": 1})", "prediction.weight"},
    {"prompt_cache_options", "\"explicit\""},
    {"prompt_cache_retention", "\"30h\""},
    {"reasoning_effort", "\"huge\""},
    {"include_reasoning", "1"},
    {"tool_choice", "\"required\""},
    {"tool_choice", "\"any\""},
    {"tools", "{}"},
    {"tools", R"([{"type": "custom"}])", "tools[0].custom"},
    {"tools", R"([{"type": "web_search"}])", "tools[0].type"},
    {"tools", R"([{"type": "function"}])", "tools[0].function"},
    {"tools", R"([{"type": "function", "function": {"name": ""}}])", "tools[0].function.name"},
    {"verbosity", "\"none\""},
    {"web_search_options", "{}"},
    {"chat_template", "\"x\""},
    {"echo", "true"},
    {"prompt", "\"x\""},
    {"suffix", "\"x\""},
    {"best_of", "1"},
};

TEST(OpenAiRefusalTest, CompletionOnlyRefusalsNameTheField) {
  ExpectRefused(ApiKind::kCompletion, kCompletionRefused);
}
TEST(OpenAiRefusalTest, ChatOnlyRefusalsNameTheField) {
  ExpectRefused(ApiKind::kChat, kChatRefused);
}

TEST(OpenAiRefusalTest, TheTemplatesVariablesAreBounded) {
  const auto body = [](const Json& kwargs) {
    return With(kChat, "chat_template_kwargs", kwargs.dump());
  };
  Json many = Json::object();
  for (int i = 0; i < 256; ++i) many[std::to_string(i)] = i;
  Parsed(ApiKind::kChat, body(many));
  many["0"] = {{"a", {1, 2}}};
  const ApiError values = Refused(ApiKind::kChat, body(many));
  EXPECT_EQ(values.param, "chat_template_kwargs");
  EXPECT_EQ(values.message, "chat_template_kwargs has 259 values; allowed: at most 256");

  const Json large = {{"a", std::string((64 << 10) - 8, 'x')}};
  Parsed(ApiKind::kChat, body(large));
  const ApiError bytes = Refused(ApiKind::kChat, body({{"ab", large["a"]}}));
  EXPECT_EQ(bytes.param, "chat_template_kwargs");
  EXPECT_EQ(bytes.message, "chat_template_kwargs has 65537 bytes; allowed: at most 65536");
}

// vLLM's and SGLang's routers, LangChain and GuideLLM send these in every request.
TEST(OpenAiRefusalTest, ValuesThatAskForNothingAreTaken) {
  const std::vector<FieldCase> cases = {
      {"no_stop_trim", "false"},
      {"return_hidden_states", "false"},
      {"separate_reasoning", "true"},
      {"separate_reasoning", "false"},
      {"stream_reasoning", "true"},
      {"stream_reasoning", "false"},
      {"parallel_tool_calls", "true"},
      {"parallel_tool_calls", "false"},
      {"prompt_cache_key", "\"a conversation\""},
      {"safety_identifier", "\"a user\""},
      {"service_tier", "\"auto\""},
      {"store", "false"},
      {"metadata", R"({"a": "b"})"},
      {"user", "\"me\""},
      {"lora_path", "null"},
      {"regex", "null"},
  };
  for (const FieldCase& c : cases) {
    Parsed(ApiKind::kCompletion, With(kCompletion, c.field, c.value));
    Parsed(ApiKind::kChat, With(kChat, c.field, c.value));
  }
  EXPECT_EQ(Refused(ApiKind::kChat, With(kChat, "no_stop_trim", "true")).message,
            "no_stop_trim is true, which this server does not support; it may be left out or be "
            "false");
}

TEST(OpenAiRefusalTest, UnknownFieldsAreIgnoredIfTheOperatorSaysSo) {
  const auto status = [](std::string_view body) {
    return ParseApiRequest(ApiKind::kChat, body, nullptr, UnknownFields::kIgnore).status();
  };
  EXPECT_TRUE(status(With(kChat, "no_such_field", "1")).ok());
  EXPECT_TRUE(status(R"({"messages": [{"role": "user", "content": "x", "y": 1}]})").ok());
  EXPECT_TRUE(
      status(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "", "x": 1}]}],
                 "stream": true, "stream_options": {"z": 1}})")
          .ok());
  EXPECT_TRUE(
      ParseEmbeddingRequest(R"({"input": "x", "y": 1})", UnknownFields::kIgnore).status().ok());
  EXPECT_TRUE(
      ParseTokenizeRequest(R"({"prompt": "x", "y": 1})", UnknownFields::kIgnore).status().ok());
  EXPECT_TRUE(
      ParseDetokenizeRequest(R"({"tokens": [1], "y": 1})", UnknownFields::kIgnore).status().ok());
  // A field that is known is refused as ever.
  for (const FieldCase& c : std::vector<FieldCase>{
           {"temperature", "\"hot\""}, {"no_stop_trim", "true"}, {"tools", "[1]", "tools[0]"}}) {
    const ApiError error = ErrorFromStatus(status(With(kChat, c.field, c.value)));
    EXPECT_EQ(error.param, c.param.empty() ? c.field : c.param);
  }
}

TEST(OpenAiRefusalTest, WhatIsRequiredIsMissed) {
  EXPECT_EQ(Refused(ApiKind::kCompletion, "{}").param, "prompt");
  EXPECT_EQ(Refused(ApiKind::kCompletion, "{}").code, "missing_required_parameter");
  EXPECT_EQ(Refused(ApiKind::kChat, "{}").param, "messages");
  EXPECT_EQ(Refused(ApiKind::kChat, "[]").param, "");
  EXPECT_EQ(Refused(ApiKind::kChat, "\"x\"").message, "the body is \"x\"; allowed: an object");
}

TEST(OpenAiRefusalTest, TheRoleIsCheckedWithTheSharedRanges) {
  ApiRequest request =
      Parsed(ApiKind::kChat, R"({"messages": [{"role": "function", "content": "x"}]})");
  request.options.prompt = request.prompts.at(0);
  EXPECT_EQ(ErrorFromStatus(ValidateRequest(request.options, 256)).param, "messages[0].role");
}

// A range that both endpoints share is refused by the engine; the field is in the message.
TEST(OpenAiRefusalTest, SharedRangesNameTheirFieldToo) {
  const std::vector<FieldCase> cases = {{"temperature", "2.5"},
                                        {"temperature", "-0.1"},
                                        {"top_p", "0"},
                                        {"top_p", "1.5"},
                                        {"top_k", "-2"},
                                        {"min_p", "1.5"},
                                        {"min_tokens", "17"},
                                        {"stop", "\"\"", "stop[0]"},
                                        {"stop_token_ids", "[256]", "stop_token_ids[0]"},
                                        {"prompt", "[256]", "prompt[0]"}};
  for (const FieldCase& c : cases) {
    ApiRequest request = Parsed(ApiKind::kCompletion, With(kCompletion, c.field, c.value));
    request.options.prompt = request.prompts.at(0);
    const ApiError error = ErrorFromStatus(ValidateRequest(request.options, 256));
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param, c.param.empty() ? c.field : c.param) << error.message;
  }
}

}  // namespace
}  // namespace millrace
