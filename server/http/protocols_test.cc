// Tools and reasoning in chats, Anthropic's messages and OpenAI's responses, with an engine whose
// answers the test writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/http/endpoint_test_util.h"
#include "server/http/http_client_test_util.h"
#include "server/http/json/json_reader.h"
#include "server/http/openai/openai_request_test_util.h"

namespace millrace {
namespace {

constexpr char kTools[] =
    R"([{"type": "function", "function": {"name": "f", "parameters": {"z": {}, "a": {}}}},
        {"type": "function", "function": {"name": "g"}}])";

// Thinks, speaks and calls f, in deltas.
void CallF(const GenerateRequest&, ScriptedStream& stream) {
  OutputEvent event;
  event.prompt_tokens = 5;
  event.tokens = {1};
  event.reasoning = "hm";
  stream.Push(event);
  event.reasoning.clear();
  event.text = "ok";
  stream.Push(event);
  event.text.clear();
  event.calls = {{0, "f", ""}};
  stream.Push(event);
  event.calls = {{0, "", "{\"a\":"}, {0, "", "1}"}};
  stream.Push(event);
  OutputEvent last = FinishEvent();
  last.finish->usage = {
      .prompt_tokens = 5, .completion_tokens = 4, .cached_tokens = 2, .reasoning_tokens = 1};
  last.finish->usage.predicted = {.accepted = 3, .rejected = 6};
  stream.Push(last);
}

class ProtocolsTest : public testing::Test {
 protected:
  ProtocolsTest() {
    endpoint_.Start({}, "key");
    endpoint_.engine().set_script(CallF);
  }

  ClientResponse Ask(std::string_view method, std::string_view path, std::string_view body,
                     std::string_view headers = "Authorization: Bearer key\r\n") {
    return endpoint_.Ask(method, path, body, headers);
  }
  Json Post(std::string_view path, std::string_view body) {
    const ClientResponse response = Ask("POST", path, body);
    EXPECT_EQ(response.status, 200) << response.body;
    return Json::parse(response.body);
  }
  Chat ChatOf(size_t request) { return std::get<Chat>(endpoint_.engine().request(request).prompt); }

  TestEndpoint endpoint_;
};

TEST(ToolRequestTest, ToolsKeepTheOrderOfTheirMembers) {
  const std::string body =
      R"({"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function",
          "function": {"name": "f", "parameters": {"z": {}, "a": {}}}}]})";
  const ApiRequest request = Parsed(ApiKind::kChat, body);
  const Chat& chat = std::get<Chat>(request.prompts[0]);
  EXPECT_EQ(chat.tools,
            R"([{"type":"function","function":{"name":"f","parameters":{"z":{},"a":{}}}}])");
  EXPECT_TRUE(chat.parse_tools);
  EXPECT_FALSE(chat.forced_tool.has_value());
  EXPECT_TRUE(request.options.parallel_tool_calls);
}

TEST(ToolRequestTest, TheChoiceArrives) {
  const auto chat_with = [](std::string_view choice) {
    const ApiRequest request =
        Parsed(ApiKind::kChat, With(With(kChat, "tools", kTools), "tool_choice", choice));
    return std::get<Chat>(request.prompts[0]);
  };
  EXPECT_EQ(chat_with("\"none\"").tools, "");
  EXPECT_EQ(chat_with("\"required\"").forced_tool, "");
  EXPECT_EQ(chat_with(R"({"type": "function", "function": {"name": "g"}})").forced_tool, "g");
}

TEST(ToolRequestTest, ATurnWithCallsNeedsNoContent) {
  const auto chat_with = [](std::string_view message) {
    const ApiRequest request = Parsed(ApiKind::kChat, StrCat(R"({"messages": [)", message, "]}"));
    return std::get<Chat>(request.prompts[0]).messages.at(0);
  };
  const ChatMessage message = chat_with(
      R"({"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": [
          {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]})");
  ASSERT_EQ(message.tool_calls.size(), 1u);
  EXPECT_EQ(message.tool_calls[0].name, "f");
  EXPECT_EQ(message.reasoning, "r");
  EXPECT_EQ(Refused(ApiKind::kChat, R"({"messages": [{"role": "assistant"}]})").param,
            "messages[0].content");
}

// Templates of models that name their calls print the names again.
TEST_F(ProtocolsTest, TheModelsOwnIdOfACallIsKept) {
  endpoint_.engine().set_script([](const GenerateRequest&, ScriptedStream& stream) {
    OutputEvent event;
    event.tokens = {1};
    event.calls = {{0, "f", "{}", "functions.f:0"}};
    stream.Push(event);
    stream.Push(FinishEvent());
  });
  EXPECT_EQ(Post("/v1/chat/completions",
                 R"({"messages": [{"role": "user", "content": "x"}]})")["choices"][0]["message"]
                                                                       ["tool_calls"][0]["id"],
            "functions.f:0");
  EXPECT_EQ(Post("/v1/responses", R"({"input": "x"})")["output"][0]["call_id"], "functions.f:0");
  EXPECT_EQ(Post("/v1/messages",
                 R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": 9})")["content"]
                                                                                        [0]["id"],
            "functions.f:0");
}

TEST_F(ProtocolsTest, AChatShowsReasoningAndCalls) {
  const std::string body = With(With(kChat, "tools", kTools), "model", "null");
  const Json whole = Post("/v1/chat/completions", body);
  const Json& choice = whole["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "ok");
  EXPECT_EQ(choice["message"]["reasoning_content"], "hm");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
  EXPECT_EQ(whole["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
  EXPECT_EQ(whole["usage"]["completion_tokens_details"]["accepted_prediction_tokens"], 3);
  EXPECT_EQ(whole["usage"]["completion_tokens_details"]["rejected_prediction_tokens"], 6);
  const ClientResponse stream = Ask("POST", "/v1/chat/completions", With(body, "stream", "true"));
  EXPECT_THAT(stream.body, testing::HasSubstr(R"("delta":{"reasoning_content":"hm")"));
  EXPECT_THAT(stream.body, testing::HasSubstr(R"("delta":{"tool_calls":[{"index":0,"id":)"));
}

TEST_F(ProtocolsTest, TextsOfPartsAreKeptApart) {
  Post("/v1/messages", R"({"max_tokens": 9, "system": [{"type": "text", "text": "s"}],
      "messages": [{"role": "user", "content": [
          {"type": "tool_result", "tool_use_id": "1", "content": [
              {"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]},
          {"type": "text", "text": "d"}, {"type": "text", "text": "e"}]}]})");
  Post("/v1/responses", R"({"input": [{"role": "user", "content": [
      {"type": "input_text", "text": "ab"}, {"type": "input_text", "text": "c"}]}]})");
  const Chat messages = ChatOf(0);
  ASSERT_EQ(messages.messages.size(), 3u);
  EXPECT_THAT(messages.messages[1].part_sizes, testing::ElementsAre(1, 2));
  EXPECT_EQ(messages.messages[2].content, "d\ne");
  EXPECT_THAT(messages.messages[2].part_sizes, testing::ElementsAre(1, 1));
  EXPECT_THAT(ChatOf(1).messages[0].part_sizes, testing::ElementsAre(2, 1));
}

TEST_F(ProtocolsTest, MessagesBecomeAChat) {
  const Json whole = Post("/v1/messages", R"({
      "max_tokens": 9, "system": [{"type": "text", "text": "s", "cache_control": {}}],
      "messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""},
          {"type": "tool_use", "id": "1", "name": "f", "input": {"z": 1, "a": 2}},
          {"type": "thinking", "thinking": "u", "signature": ""}]},
        {"role": "user", "content": [
          {"type": "tool_result", "tool_use_id": "1", "content": "r", "is_error": true},
          {"type": "text", "text": "go"}]}],
      "tools": [{"name": "f", "input_schema": {"z": {}, "a": {}}, "strict": true}],
      "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}})");
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  ASSERT_EQ(whole["content"].size(), 3u);
  EXPECT_EQ(whole["content"][2]["input"], Json({{"a", 1}}));
  EXPECT_EQ(whole["usage"]["input_tokens"], 3);
  EXPECT_EQ(whole["usage"]["cache_read_input_tokens"], 2);
  const GenerateRequest request = endpoint_.engine().request(0);
  EXPECT_EQ(request.default_max_tokens, 9);
  EXPECT_FALSE(request.parallel_tool_calls);
  const Chat chat = ChatOf(0);
  ASSERT_EQ(chat.messages.size(), 5u);
  EXPECT_EQ(chat.messages[0].role, "system");
  EXPECT_EQ(chat.messages[2].reasoning, "t\nu");
  EXPECT_EQ(chat.messages[2].tool_calls[0].arguments, R"({"z":1,"a":2})");
  EXPECT_EQ(chat.messages[3].content, "Error: r");
  EXPECT_EQ(chat.messages[4].content, "go");
  EXPECT_EQ(chat.tools,
            R"([{"type":"function","function":{"name":"f","parameters":{"z":{},"a":{}},)"
            R"("strict":true}}])");
}

TEST_F(ProtocolsTest, MessagesHaveTheirKeyAndTheirErrors) {
  constexpr char kBody[] = R"({"max_tokens": 1, "messages": [{"role": "user", "content": "q"}]})";
  EXPECT_EQ(Ask("POST", "/v1/messages", kBody, "x-api-key: key\r\n").status, 200);
  const ClientResponse refused = Ask("POST", "/v1/messages", kBody, "x-api-key: other\r\n");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(Json::parse(refused.body)["error"]["type"], "authentication_error");
  const ClientResponse bad = Ask("POST", "/v1/messages", "{}");
  EXPECT_EQ(bad.status, 400);
  EXPECT_EQ(Json::parse(bad.body)["type"], "error");
  const ClientResponse put = Ask("PUT", "/v1/messages", "{}");
  EXPECT_EQ(put.status, 405);
  EXPECT_EQ(Json::parse(put.body)["type"], "error");
}

TEST_F(ProtocolsTest, AnErrorInAStreamIsAnEvent) {
  endpoint_.engine().set_script([](const GenerateRequest&, ScriptedStream& stream) {
    stream.Push(TextEvent("x", {1}));
    stream.Push(ErrorEvent(absl::InternalError("broken")));
  });
  constexpr char kMessages[] =
      R"({"max_tokens": 1, "stream": true, "messages": [{"role": "user", "content": "q"}]})";
  EXPECT_THAT(Ask("POST", "/v1/messages", kMessages).body,
              testing::HasSubstr("event: error\ndata: {\"type\":\"error\""));
  EXPECT_THAT(Ask("POST", "/v1/responses", R"({"input": "q", "stream": true})").body,
              testing::HasSubstr("event: error\ndata: {\"type\":\"error\",\"sequence_number\":5"));
}

TEST_F(ProtocolsTest, AnItemThatIsCutOffIsIncomplete) {
  for (const FinishReason reason : {FinishReason::kLength, FinishReason::kStop}) {
    endpoint_.engine().set_script([&](const GenerateRequest&, ScriptedStream& stream) {
      stream.Push(TextEvent("x", {1}));
      stream.Push(FinishEvent(reason));
    });
    const std::string body = Ask("POST", "/v1/responses", R"({"input": "q", "stream": true})").body;
    const size_t done = body.find("event: response.output_item.done");
    ASSERT_NE(done, body.npos);
    const std::string event = body.substr(done, body.find("\n\n", done) - done);
    EXPECT_THAT(event,
                testing::HasSubstr(reason == FinishReason::kStop ? R"("status":"completed")"
                                                                 : R"("status":"incomplete")"));
  }
}

// The answer and the store share the text of a long request, which a response repeats.
TEST_F(ProtocolsTest, ALongRequestIsRepeatedWhole) {
  const std::string instructions(400'000, 'i');
  Json ask = {{"input", "q"}, {"instructions", instructions}};
  const Json whole = Post("/v1/responses", ask.dump());
  EXPECT_EQ(whole["instructions"], instructions);
  EXPECT_EQ(whole["output"][2]["arguments"], "{\"a\":1}");
  ask["stream"] = true;
  const std::string body = Ask("POST", "/v1/responses", ask.dump()).body;
  Json last;
  size_t events = 0;
  for (size_t at = 0; (at = body.find("data: ", at)) != body.npos; ++events) {
    const size_t end = body.find("\n\n", at);
    last = Json::parse(body.substr(at + 6, end - at - 6));
    EXPECT_EQ(last["sequence_number"], events);
    EXPECT_EQ(last.value("response", whole)["instructions"], instructions);
    at = end;
  }
  EXPECT_EQ(last["type"], "response.completed");
  EXPECT_GT(events, 10u);
  for (const Json& response : {whole, last["response"]}) {
    const std::string path = "/v1/responses/" + response["id"].get<std::string>();
    EXPECT_EQ(Json::parse(Ask("GET", path, "").body), response);
  }
}

TEST_F(ProtocolsTest, ResponsesAreKeptAndGoneOnFrom) {
  const Json first = Post("/v1/responses", R"({"input": "q", "instructions": "i"})");
  EXPECT_EQ(first["status"], "completed");
  ASSERT_EQ(first["output"].size(), 3u);
  EXPECT_EQ(first["output"][2]["arguments"], "{\"a\":1}");
  EXPECT_EQ(first["usage"]["output_tokens_details"]["reasoning_tokens"], 1);
  const std::string path = "/v1/responses/" + first["id"].get<std::string>();
  EXPECT_EQ(Json::parse(Ask("GET", path, "").body), first);
  Json next = {{"previous_response_id", first["id"]},
               {"input", Json::array({{{"type", "function_call_output"},
                                       {"call_id", first["output"][2]["call_id"]},
                                       {"output", "r"}}})}};
  Post("/v1/responses", next.dump());
  const Chat chat = ChatOf(1);  // without the first one's instructions
  ASSERT_EQ(chat.messages.size(), 3u);
  EXPECT_EQ(chat.messages[1].reasoning, "hm");
  EXPECT_EQ(chat.messages[1].tool_calls[0].id, chat.messages[2].tool_call_id);
  EXPECT_EQ(Ask("DELETE", path, "").status, 200);
  EXPECT_EQ(Ask("DELETE", path, "").status, 404);
  EXPECT_EQ(Ask("GET", path, "").status, 404);
  EXPECT_EQ(Ask("POST", "/v1/responses", next.dump()).status, 400);
}

TEST_F(ProtocolsTest, ItemsOfAnAnswerAreOneTurn) {
  Post("/v1/responses", R"({"input": [
      {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
      {"type": "reasoning", "id": "r", "summary": [],
       "content": [{"type": "reasoning_text", "text": "hm"}]},
      {"type": "reasoning", "id": "s", "summary": [],
       "content": [{"type": "reasoning_text", "text": "so"}]},
      {"type": "message", "role": "assistant", "id": "m", "status": "completed",
       "content": [{"type": "output_text", "text": "ok", "annotations": [], "logprobs": []}]},
      {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
      {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "1", "output": "x"}],
      "text": {"format": {"type": "json_schema", "name": "n", "schema": {"z": 1, "a": 2}}}})");
  const Chat chat = ChatOf(0);
  ASSERT_EQ(chat.messages.size(), 3u);
  EXPECT_EQ(chat.messages[1].content, "ok");
  EXPECT_EQ(chat.messages[1].reasoning, "hm\nso");
  EXPECT_EQ(chat.messages[1].tool_calls.size(), 2u);
  EXPECT_EQ(endpoint_.engine().request(0).grammar->text, R"({"z":1,"a":2})");
}

TEST_F(ProtocolsTest, AClientThatLeavesGivesItsTextUp) {
  endpoint_.engine().hold_texts();
  size_t given_up = 0;
  for (const auto& [path, body] :
       {std::pair("/tokenize", R"({"prompt": "a"})"),
        {"/detokenize", R"({"tokens": [1]})"},
        {"/v1/messages/count_tokens", R"({"messages": [{"role": "user", "content": "q"}]})"}}) {
    RawClient client(endpoint_.port());
    client.Request("POST", path, body, "Authorization: Bearer key\r\n");
    endpoint_.engine().WaitTexts(++given_up);
    client.Close();
    endpoint_.engine().WaitTextsGivenUp(given_up);  // hangs if it goes on
  }
}

// A body is read once, with all of its numbers as they are written: what schemas, tools and calls
// are passed on as has them so, whatever the protocol.
TEST_F(ProtocolsTest, NumbersOfSchemasToolsAndCallsStayAsTheyAreWritten) {
  constexpr std::string_view kMarked =
      R"({"z":1.50,"a":[1e3,12345678901234567890123,0.1000000000000000055],"m":0.5})";
  const auto post = [&](const std::string& path, std::string body) {
    for (size_t at = 0; (at = body.find('$')) != body.npos;) body.replace(at, 1, kMarked);
    Post(path, body);
  };
  post("/v1/chat/completions", R"({"temperature": 0.70, "messages": [
      {"role": "user", "content": "q"},
      {"role": "assistant", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": $}}]},
      {"role": "tool", "tool_call_id": "1", "content": "r"}],
      "chat_template_kwargs": $,
      "tools": [{"type": "function", "function": {"name": "f", "parameters": $}}],
      "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": $}}})");
  post("/v1/messages", R"({"max_tokens": 9, "temperature": 0.70, "messages": [
      {"role": "user", "content": "q"},
      {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": $}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "1", "content": "r"}]}],
      "tools": [{"name": "f", "input_schema": $}],
      "output_config": {"format": {"type": "json_schema", "schema": $}}})");
  post("/v1/responses", R"({"temperature": 0.70, "input": [
      {"role": "user", "content": "q"},
      {"type": "local_shell_call", "call_id": "1", "action": $},
      {"type": "local_shell_call_output", "call_id": "1", "output": "r"}],
      "tools": [{"type": "function", "name": "f", "parameters": $}],
      "text": {"format": {"type": "json_schema", "name": "n", "schema": $}}})");
  for (size_t i = 0; i < 3; ++i) {
    const GenerateRequest request = endpoint_.engine().request(i);
    const Chat chat = ChatOf(i);
    EXPECT_EQ(request.temperature, 0.7f);
    EXPECT_EQ(request.grammar->text, kMarked);
    EXPECT_EQ(chat.messages.at(1).tool_calls.at(0).arguments, kMarked);
    EXPECT_EQ(chat.tools, StrCat(R"([{"type":"function","function":{"name":"f","parameters":)",
                                 kMarked, "}}]"));
    EXPECT_EQ(chat.template_kwargs, i == 0 ? kMarked : "");
  }
}

// OrderedJson::parse would compare each of these keys with all before it, for minutes.
TEST_F(ProtocolsTest, ABodyOfManyKeysTakesLinearTime) {
  std::string keys;
  for (int i = 0; i < 200000; ++i) keys += StrCat(i > 0 ? ",\"" : "\"", i, "\":0");
  const std::string body = StrCat(R"({"input": "q", "metadata": {)", keys, "}}");
  EXPECT_EQ(Ask("POST", "/v1/responses", body).status, 400);
  const std::string tool = StrCat(
      R"({"max_tokens": 1, "messages": [{"role": "assistant", "content": [
          {"type": "tool_use", "id": "1", "name": "f", "input": {)",
      keys, R"(}}]}]})");
  Post("/v1/messages", tool);
}

}  // namespace
}  // namespace millrace
