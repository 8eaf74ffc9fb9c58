// Requests as coding agents and their libraries send them: hints are taken, and what would change
// the answer is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/http/endpoint_test_util.h"
#include "server/http/json/json_reader.h"
#include "server/http/openai/openai_request_test_util.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr char kMessages[] =
    R"({"max_tokens": 32000, "messages": [{"role": "user", "content": "q"}]})";
constexpr char kResponses[] = R"({"input": "q"})";

// As Codex sends it in the middle of a task.
constexpr char kCodex[] = R"({
    "instructions": "You work on code.",
    "input": [
      {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Ask."}]},
      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it."}]},
      {"type": "reasoning", "summary": [], "encrypted_content": null},
      {"type": "function_call", "name": "exec_command", "arguments": "{\"cmd\":\"ls\"}",
       "call_id": "call_1"},
      {"type": "function_call_output", "call_id": "call_1", "output": "a.c"},
      {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Now I write."}],
       "encrypted_content": "c2VhbGVk"},
      {"type": "custom_tool_call", "status": "completed", "call_id": "call_2",
       "name": "apply_patch", "input": "*** a patch"},
      {"type": "custom_tool_call_output", "call_id": "call_2", "output": "done"},
      {"type": "local_shell_call", "call_id": "call_3", "status": "completed",
       "action": {"type": "exec", "command": ["make"], "timeout_ms": null}},
      {"type": "local_shell_call_output", "call_id": "call_3", "output": "built"},
      {"type": "web_search_call", "status": "completed",
       "action": {"type": "search", "query": "c"}},
      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go on."}]}],
    "tools": [
      {"type": "function", "name": "exec_command", "description": "Runs a command.",
       "strict": false, "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}},
       "required": ["cmd"], "additionalProperties": false}},
      {"type": "custom", "name": "apply_patch", "description": "Changes files.",
       "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
      {"type": "local_shell"},
      {"type": "web_search", "external_web_access": false},
      {"type": "image_generation", "output_format": "png"},
      {"type": "tool_search", "execution": "client", "description": "d", "parameters": {}},
      {"type": "namespace", "name": "docs", "description": "Pages", "tools": [
        {"type": "function", "name": "f", "description": "Reads.", "strict": false,
         "defer_loading": true, "parameters": {"type": "object", "properties": {}}}]}],
    "tool_choice": "auto", "parallel_tool_calls": true,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": false, "stream": false, "include": ["reasoning.encrypted_content"],
    "service_tier": "priority", "prompt_cache_key": "0199", "text": {"verbosity": "low"},
    "client_metadata": {"session": "0199"}})";

// As Claude Code sends it in the middle of a task.
constexpr char kClaudeCode[] = R"({
    "max_tokens": 32000, "stream": false, "temperature": 1,
    "system": [{"type": "text", "text": "You work on code."},
               {"type": "text", "text": "Be brief.",
                "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
    "messages": [
      {"role": "user", "content": [{"type": "text", "text": "Fix it."},
                                   {"type": "text", "text": "Soon."}]},
      {"role": "assistant", "content": [
        {"type": "redacted_thinking", "data": "c2VhbGVk"},
        {"type": "thinking", "thinking": "I read.", "signature": "c2ln"},
        {"type": "text", "text": "One moment."},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"path": "a.c"},
         "caller": {"type": "direct"}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": false,
         "content": [{"type": "text", "text": "int a;"}, {"type": "text", "text": "int b;"}],
         "cache_control": {"type": "ephemeral"}}]},
      {"role": "system", "content": "The file has changed."},
      {"role": "user", "content": "Go on."}],
    "tools": [
      {"name": "f", "description": "Reads a file.", "eager_input_streaming": true,
       "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema",
                        "type": "object", "properties": {"path": {"type": "string"}},
                        "required": ["path"], "additionalProperties": false}},
      {"name": "g", "defer_loading": true, "input_schema": {"type": "object"}},
      {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
      {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
    "metadata": {"user_id": "{\"device_id\": \"0199\"}"},
    "thinking": {"type": "enabled", "budget_tokens": 31999, "display": "summarized"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"}, "diagnostics": {"previous_message_id": null},
    "speed": "fast"})";

void CallsF(const GenerateRequest&, ScriptedStream& stream) {
  OutputEvent event;
  event.prompt_tokens = 5;
  event.tokens = {1};
  event.reasoning = "hm";
  event.calls = {{0, "f", "{}"}};
  stream.Push(event);
  OutputEvent last = FinishEvent(FinishReason::kLength);
  last.finish->usage = {.prompt_tokens = 5, .completion_tokens = 1};
  stream.Push(last);
}

class AgentsTest : public testing::Test {
 protected:
  AgentsTest() {
    endpoint_.Start();
    endpoint_.engine().set_script(CallsF);
  }

  ClientResponse Post(std::string_view path, std::string_view body) {
    return endpoint_.Ask("POST", path, body);
  }
  Json Taken(std::string_view path, std::string_view body) {
    const ClientResponse response = Post(path, body);
    EXPECT_EQ(response.status, 200) << body << ": " << response.body;
    return Json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  }
  // Expects that each value of a field beside `body` is refused, with the field's name.
  void ExpectRefused(std::string_view path, std::string_view body,
                     const std::vector<FieldCase>& cases) {
    for (const FieldCase& c : cases) {
      const ClientResponse response = Post(path, With(body, c.field, c.value));
      EXPECT_EQ(response.status, 400) << c.field << ": " << c.value;
      EXPECT_THAT(response.body, HasSubstr(c.param.empty() ? c.field : c.param));
    }
  }
  Chat ChatOf(size_t request) { return std::get<Chat>(endpoint_.engine().request(request).prompt); }

  TestEndpoint endpoint_;
};

TEST_F(AgentsTest, ATurnOfCodexIsTakenWhole) {
  const Json response = Taken("/v1/responses", kCodex);
  EXPECT_EQ(response["truncation"], "disabled");
  EXPECT_EQ(response["service_tier"], "default");
  EXPECT_EQ(response["output"][1]["name"], "f");
  EXPECT_EQ(response["output"][1]["namespace"], "docs");
  const Chat chat = ChatOf(0);
  // A tool that takes a text is shown as a function; others are not shown, so they are not called.
  EXPECT_THAT(chat.tools, HasSubstr("exec_command"));
  EXPECT_THAT(chat.tools, HasSubstr(R"("name":"apply_patch","description":"Changes files.)"));
  EXPECT_TRUE(chat.text_tools.at("apply_patch").has_value());
  EXPECT_THAT(chat.tools, HasSubstr(R"("name":"f","description":"Reads.")"));
  for (const std::string_view left_out : {"web_search", "local_shell", "defer"}) {
    EXPECT_EQ(chat.tools.find(left_out), chat.tools.npos) << left_out;
  }
  EXPECT_EQ(chat.reasoning_effort, "medium");
  // Nothing that the conversation says is lost.
  std::string roles;
  for (const ChatMessage& message : chat.messages) roles += message.role + " ";
  EXPECT_EQ(roles, "system developer user assistant tool assistant tool assistant tool user ");
  EXPECT_EQ(chat.messages[5].reasoning, "Now I write.");
  EXPECT_EQ(chat.messages[5].tool_calls[0].arguments, R"({"input":"*** a patch"})");
  EXPECT_EQ(chat.messages[7].tool_calls[0].name, "local_shell");
  EXPECT_EQ(chat.messages[7].tool_calls[0].arguments,
            R"({"type":"exec","command":["make"],"timeout_ms":null})");
  EXPECT_EQ(chat.messages[8].content, "built");
}

TEST_F(AgentsTest, ATurnOfClaudeCodeIsTakenWhole) {
  const Json message = Taken("/v1/messages?beta=true", kClaudeCode);
  EXPECT_EQ(message["content"][0]["type"], "thinking");
  const GenerateRequest request = endpoint_.engine().request(0);
  // The number that agents ask for is an upper bound, which gives way to what fits.
  EXPECT_FALSE(request.max_tokens.has_value());
  EXPECT_EQ(request.default_max_tokens, 32000);
  EXPECT_EQ(message["stop_reason"], "model_context_window_exceeded");
  const Chat chat = ChatOf(0);
  std::string roles;
  for (const ChatMessage& turn : chat.messages) roles += turn.role + " ";
  EXPECT_EQ(roles, "system user assistant tool system user ");
  EXPECT_EQ(chat.messages[2].reasoning, "I read.");
  EXPECT_EQ(chat.messages[3].content, "int a;\nint b;");
  EXPECT_EQ(chat.messages[4].content, "The file has changed.");
  EXPECT_THAT(chat.tools, HasSubstr(R"("name":"g")"));
  EXPECT_EQ(chat.tools.find("web_search"), chat.tools.npos);
  // The scripted model has no thoughts that a budget could end.
  EXPECT_FALSE(request.thinking_token_budget.has_value());
}

TEST_F(AgentsTest, HintsOfMessagesAreTaken) {
  for (const FieldCase& c : std::vector<FieldCase>{
           {"context_management", R"({"edits": [{"type": "clear_tool_uses_20250919"}]})"},
           {"compaction", R"({"type": "x"})"},
           {"diagnostics", "{}"},
           {"metadata", R"({"user_id": "u"})"},
           {"service_tier", "\"standard_only\""},
           {"speed", "\"fast\""},
           {"user_profile_id", "\"u\""},
           {"output_config", R"({"effort": "max"})"},
           {"thinking", R"({"type": "adaptive"})"},
           {"thinking", R"({"type": "between_tools"})"},
           {"thinking", R"({"type": "enabled", "budget_tokens": 1024})"},
           {"tools", R"([{"type": "web_fetch_20260309", "name": "web_fetch", "max_uses": 1}])"},
           {"tools", R"([{"type": "code_execution_20250825", "name": "code_execution"}])"}}) {
    Taken("/v1/messages", With(kMessages, c.field, c.value));
  }
  const Json omitted = Taken(
      "/v1/messages", With(kMessages, "thinking", R"({"type": "adaptive", "display": "omitted"})"));
  EXPECT_EQ(omitted["content"][0]["type"], "tool_use");
  ExpectRefused("/v1/messages", kMessages,
                {{"inference_geo", "\"eu\""},
                 {"mcp_servers", R"([{"type": "url", "url": "u", "name": "n"}])"},
                 {"container", "\"c\""},
                 {"context_management", "[]"},
                 {"output_config", R"({"effort": "huge"})", "output_config.effort"},
                 {"output_config", R"({"task_budget": {"total": 1}})", "output_config.task_budget"},
                 {"thinking", R"({"type": "adaptive", "display": "all"})", "thinking.display"},
                 {"tools", R"([{"type": "bash_20250124", "name": "bash"}])", "tools[0].type"},
                 {"tools", R"([{"type": "web_search", "name": "w"}])", "tools[0].type"},
                 {"speed", "\"slow\""}});
}

TEST_F(AgentsTest, AToolThatIsNotShownCannotBeForced) {
  const std::string tools =
      With(kMessages, "tools", R"([{"type": "web_search_20250305", "name": "web_search"}])");
  ExpectRefused("/v1/messages", tools,
                {{"tool_choice", R"({"type": "any"})"},
                 {"tool_choice", R"({"type": "tool", "name": "web_search"})"}});
  ExpectRefused("/v1/responses", With(kResponses, "tools", R"([{"type": "local_shell"}])"),
                {{"tool_choice", "\"required\""},
                 {"tool_choice", R"({"type": "custom", "name": "local_shell"})"},
                 {"tool_choice", R"({"type": "allowed_tools", "mode": "required",
                                     "tools": [{"type": "local_shell"}]})"},
                 {"tool_choice", R"({"type": "function", "name": "x"})"}});
}

TEST_F(AgentsTest, HintsOfResponsesAreTaken) {
  for (const FieldCase& c : std::vector<FieldCase>{
           {"include", R"(["web_search_call.action.sources", "code_interpreter_call.outputs"])"},
           {"store", "true"},
           {"text", R"({"verbosity": "high"})"},
           {"truncation", "\"auto\""},
           {"client_metadata", R"({"a": {"b": 1}})"},
           {"context_management", R"([{"type": "compaction", "compact_threshold": 9}])"},
           {"max_tool_calls", "3"},
           {"service_tier", "\"flex\""},
           {"prompt_cache_options", R"({"mode": "explicit"})"},
           {"prompt_cache_retention", "\"24h\""},
           {"reasoning", R"({"effort": "high", "summary": "detailed", "context": "all_turns"})"},
           {"stream_options", R"({"include_usage": true})"},
           {"max_output_tokens", "2000000000"},
           {"tools", R"([{"type": "web_search_preview_2025_03_11"}])"}}) {
    Taken("/v1/responses", With(kResponses, c.field, c.value));
  }
  ExpectRefused(
      "/v1/responses", kResponses,
      {{"include", R"(["message.output_text.logprobs"])", "include[0]"},
       {"include", "\"reasoning.encrypted_content\""},
       {"background", "true"},
       {"conversation", "\"c\""},
       {"prompt", R"({"id": "p"})"},
       {"top_logprobs", "2"},
       {"truncation", "\"middle\""},
       {"max_tool_calls", "0"},
       {"client_metadata", "\"x\""},
       {"context_management", "{}"},
       {"reasoning", R"({"mode": "pro"})", "reasoning.mode"},
       {"stream_options", R"({"include_obfuscation": true})", "stream_options.include_obfuscation"},
       {"tools", R"([{"type": "file_search", "vector_store_ids": ["v"]}])", "tools[0].type"},
       {"tools", R"([{"type": "mcp", "server_label": "m"}])", "tools[0].type"},
       {"tools", R"([{"type": "function", "name": "f"}, {"type": "namespace", "name": "n",
                      "tools": [{"type": "function", "name": "f"}]}])",
        "f twice"},
       {"tools", R"([{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}])",
        "tools[0].tools[0].type"},
       {"input", R"([{"type": "compaction", "encrypted_content": "x"}])", "input[0].type"},
       {"input", R"([{"type": "item_reference", "id": "x"}])", "input[0].type"}});
}

TEST_F(AgentsTest, ReasoningThatNobodyCanReadMakesNoTurn) {
  Taken("/v1/responses", R"({"input": [
      {"role": "user", "content": "q"},
      {"type": "reasoning", "summary": [], "encrypted_content": "x"},
      {"role": "user", "content": "r"}]})");
  EXPECT_EQ(ChatOf(0).messages.size(), 2u);
  ExpectRefused("/v1/responses", kResponses,
                {{"input", R"([{"type": "reasoning", "summary": [], "encrypted_content": "x"}])"},
                 {"input", R"([{"type": "web_search_call", "action": {}}])"}});
}

// As LiteLLM and others send back what they have joined to an answer.
TEST_F(AgentsTest, FieldsThatLibrariesAddAreTakenBack) {
  Taken("/v1/chat/completions", R"({"messages": [
      {"role": "system", "content": [{"type": "text", "text": "s",
       "cache_control": {"type": "ephemeral"}}]},
      {"role": "user", "content": "q", "cache_control": {"type": "ephemeral"}},
      {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": [
        {"id": "c", "index": 2, "type": "function", "provider_specific_fields": {"a": 1},
         "extra_content": {"google": {"thought_signature": "x"}},
         "function": {"name": "f", "arguments": "{}", "provider_specific_fields": null}}],
       "provider_specific_fields": {"stop_reason": null, "reasoning": "r"},
       "thinking_blocks": [{"type": "thinking", "thinking": "r", "signature": ""}],
       "reasoning_details": [{"type": "reasoning.text", "text": "r"}]},
      {"role": "tool", "tool_call_id": "c", "content": "t", "provider_specific_fields": {}}],
      "tools": [{"type": "function", "function": {"name": "f"},
                 "cache_control": {"type": "ephemeral"}}]})");
  EXPECT_EQ(ChatOf(0).messages[2].reasoning, "r");
  EXPECT_EQ(ChatOf(0).tools.find("cache_control"), std::string::npos);
  // What would change the answer is refused.
  ExpectRefused("/v1/chat/completions", kChat,
                {{"messages", R"([{"role": "assistant", "content": "a", "prefix": true}])",
                  "messages[0].prefix"}});
}

TEST_F(AgentsTest, HintsOfChatsAreTaken) {
  const std::string chat = With(kChat, "model", "null");
  for (const FieldCase& c : std::vector<FieldCase>{{"verbosity", "\"low\""},
                                                   {"verbosity", "\"high\""},
                                                   {"store", "true"},
                                                   {"service_tier", "\"priority\""},
                                                   {"prompt_cache_retention", "\"24h\""},
                                                   {"reasoning_effort", "\"minimal\""}}) {
    Taken("/v1/chat/completions", With(chat, c.field, c.value));
  }
  // A chat's number is a wish of its own.
  Taken("/v1/chat/completions", With(chat, "max_tokens", "32000"));
  EXPECT_EQ(endpoint_.engine().request(6).max_tokens, 32000);
}

TEST_F(AgentsTest, ErrorsUnderMessagesHaveAnthropicsShape) {
  for (const std::string_view path : {"/v1/messages/batches", "/v1/messages/", "/v1/messages/x/y",
                                      "/v1/messages/count_tokens/x?beta=true"}) {
    const ClientResponse unknown = Post(path, "{}");
    EXPECT_EQ(unknown.status, 404) << path;
    const Json json = Json::parse(unknown.body);
    EXPECT_EQ(json["type"], "error");
    EXPECT_EQ(json["error"]["type"], "not_found_error");
  }
  EXPECT_EQ(Json::parse(Post("/v1/message", "{}").body).count("type"), 0u);
}

TEST_F(AgentsTest, ClientsAreToldNotToTryAgain) {
  const auto says = [](const ClientResponse& response) {
    const auto header = response.headers.find("x-should-retry");
    return header == response.headers.end() ? "" : header->second;
  };
  EXPECT_EQ(says(Post("/v1/messages", "{}")), "false");
  EXPECT_EQ(says(Post("/v1/chat/completions", "{}")), "false");
  for (const auto& [error, status, retry] :
       {std::tuple(absl::DeadlineExceededError("late"), 504, "false"),
        std::tuple(absl::ResourceExhaustedError("full"), 429, ""),
        std::tuple(absl::UnavailableError("gone"), 503, "")}) {
    endpoint_.engine().set_script([error = error](const GenerateRequest&, ScriptedStream& stream) {
      stream.Push(ErrorEvent(error));
    });
    for (const auto& [path, body] :
         {std::pair("/v1/messages", kMessages), std::pair("/v1/responses", kResponses),
          std::pair("/v1/completions", R"({"prompt": "p"})")}) {
      const ClientResponse response = Post(path, body);
      EXPECT_EQ(response.status, status) << path;
      EXPECT_EQ(says(response), retry) << path << status;
    }
  }
}

TEST_F(AgentsTest, FieldsOfOtherServersAreExplained) {
  for (const auto& [path, body, field, hint] : std::vector<std::array<std::string, 4>>{
           {"/v1/chat/completions", std::string(kChat), "repeat_penalty",
            "did you mean repetition_penalty? (it counts the prompt and the whole answer)"},
           {"/v1/chat/completions", std::string(kChat), "num_predict", "did you mean max_tokens?"},
           {"/v1/completions", R"({"prompt": "p"})", "n_predict", "did you mean max_tokens?"},
           {"/v1/responses", kResponses, "num_predict", "did you mean max_output_tokens?"},
           {"/v1/responses", kResponses, "max_tokens", "did you mean max_output_tokens?"},
           {"/v1/responses", kResponses, "response_format", "did you mean text?"},
           {"/v1/messages", kMessages, "stop", "did you mean stop_sequences?"},
           {"/v1/chat/completions", std::string(kChat), "options", "fields of the request itself"},
           {"/v1/chat/completions", std::string(kChat), "keep_alive", "stays loaded"},
           {"/v1/chat/completions", std::string(kChat), "format", "did you mean response_format?"},
           {"/v1/chat/completions", std::string(kChat), "mirostat", "no such sampler"},
           {"/v1/completions", R"({"prompt": "p"})", "max_new_tokens", "did you mean max_tokens?"},
           {"/v1/chat/completions", std::string(kChat), "temprature",
            "did you mean temperature?"}}) {
    const ClientResponse response = Post(path, With(body, field, "1"));
    EXPECT_EQ(response.status, 400);
    EXPECT_THAT(response.body, HasSubstr(StrCat(field, " is not a known field")));
    EXPECT_THAT(response.body, HasSubstr(hint)) << field;
  }
}

}  // namespace
}  // namespace millrace
