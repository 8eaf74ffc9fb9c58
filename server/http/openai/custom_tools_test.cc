// Tools that take a text, in chats and responses: what the model is shown, and its calls as they
// come back.
#include "server/http/openai/custom_tools.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "formats/json/json.h"
#include "server/http/endpoint_test_util.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// Returns the text of a call whose arguments come in pieces of so many bytes.
std::string TextOf(std::string_view arguments, size_t piece) {
  ArgumentTexts texts({{"p", std::nullopt}});
  std::string text;
  const auto take = [&](const std::vector<ToolCallDelta>& calls) {
    for (const ToolCallDelta& call : calls) {
      EXPECT_TRUE(call.is_text);
      text += call.arguments;
    }
  };
  std::vector<ToolCallDelta> first = {{0, "p", ""}};
  texts.Take(first);
  take(first);
  for (size_t at = 0; at < arguments.size(); at += piece) {
    std::vector<ToolCallDelta> more = {{0, "", std::string(arguments.substr(at, piece))}};
    texts.Take(more);
    take(more);
  }
  std::vector<ToolCallDelta> rest;
  texts.Flush(rest);
  take(rest);
  return text;
}

TEST(ArgumentTextsTest, TheTextIsWhatTheArgumentsSayInAnyPieces) {
  for (const auto& [arguments, text] : std::vector<std::pair<std::string, std::string>>{
           {R"({"input": "a\n\"b\"\\c"})", "a\n\"b\"\\c"},
           {R"( { "input" : "\u00e9\ud83d\ude00\/" } )", "é😀/"},
           {R"({"input": "\ud83d x\ude00"})", "\xef\xbf\xbd x\xef\xbf\xbd"},
           {R"({"input": "\ud83d"})", "\xef\xbf\xbd"},
           {R"({"input": "é"})", "é"},
           {R"({"input": ""})", ""},
           // Cut off.
           {R"({"input": "ab)", "ab"},
           {R"({"inp)", ""},
           // Other shapes.
           {R"({"why": "x", "input": "y\n"})", "y\n"},
           {R"({"input": 5})", "5"},
           {R"({"input": 1.50})", "1.50"},
           {R"({"input": 123456789012345678901234567890})", "123456789012345678901234567890"},
           {R"({"input": [-99999999999999999999]})", "[-99999999999999999999]"},
           {R"({"input": {"a": [1]}})", R"({"a":[1]})"},
           {R"({"patch": "x"})", R"({"patch": "x"})"},
           {"{}", ""},
           {"no JSON", "no JSON"}}) {
    for (const size_t piece : {1, 2, 3, 100}) {
      EXPECT_EQ(TextOf(arguments, piece), text) << arguments << " in pieces of " << piece;
    }
  }
}

TEST(ArgumentTextsTest, OtherCallsStayAsTheyAre) {
  ArgumentTexts texts({{"p", std::nullopt}});
  std::vector<ToolCallDelta> calls = {
      {0, "f", R"({"input": "x"})"}, {1, "p", R"({"a": 1, "input": "y"})"}, {2, "f", "{}"}};
  texts.Take(calls);
  ASSERT_EQ(calls.size(), 4u);
  EXPECT_EQ(calls[0].arguments, R"({"input": "x"})");
  EXPECT_FALSE(calls[0].is_text);
  EXPECT_EQ(calls[1].name, "p");
  EXPECT_EQ(calls[2].arguments, "y");  // at the latest before the next call
  EXPECT_EQ(calls[2].index, 1);
  EXPECT_EQ(calls[3].arguments, "{}");
}

constexpr char kResponses[] = R"({"input": "q", "stream": STREAM, "tools": [
    {"type": "function", "name": "f"},
    {"type": "custom", "name": "patch", "description": "Changes files.",
     "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
    {"type": "namespace", "name": "shell", "tools": [{"type": "custom", "name": "run"}]}]})";
constexpr char kChat[] = R"({"messages": [
    {"role": "user", "content": "q"},
    {"role": "assistant", "tool_calls": [
      {"id": "c1", "type": "custom", "custom": {"name": "run", "input": "say \"hi\""}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "hi"}], "stream": STREAM, "tools": [
    {"type": "custom", "custom": {"name": "run", "description": "Runs.", "format": {"type":
     "grammar", "grammar": {"syntax": "regex", "definition": "[a-z ]+"}}}},
    {"type": "function", "function": {"name": "f"}}]})";

std::string With(std::string body, const std::string& stream, const std::string& more = "") {
  body.replace(body.find("STREAM"), 6, stream);
  body.pop_back();
  return StrCat(body, more, "}");
}

// Calls run, in pieces, after a text.
void CallsRun(const GenerateRequest&, ScriptedStream& stream) {
  OutputEvent event;
  event.prompt_tokens = 5;
  event.tokens = {1};
  event.text = "Now:";
  event.calls = {{0, "run", R"({"input": "a)"}};
  stream.Push(event);
  OutputEvent more;
  more.tokens = {2};
  more.calls = {{0, "", R"(\nb"})"}};
  stream.Push(more);
  stream.Push(FinishEvent(FinishReason::kStop));
}

class CustomToolsTest : public testing::Test {
 protected:
  CustomToolsTest() {
    endpoint_.Start();
    endpoint_.engine().set_script(CallsRun);
  }
  std::string Taken(std::string_view path, const std::string& body) {
    const ClientResponse response = endpoint_.Ask("POST", path, body);
    EXPECT_EQ(response.status, 200) << body << ": " << response.body;
    return response.body;
  }
  void ExpectRefused(std::string_view path, const std::string& body, std::string_view what) {
    const ClientResponse response = endpoint_.Ask("POST", path, body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_THAT(response.body, HasSubstr(std::string(what))) << body;
  }
  GenerateRequest Last() {
    return endpoint_.engine().request(endpoint_.engine().num_requests() - 1);
  }
  Chat LastChat() { return std::get<Chat>(Last().prompt); }

  TestEndpoint endpoint_;
};

TEST_F(CustomToolsTest, AResponseHasTheTextOfACall) {
  const Json response = Json::parse(Taken("/v1/responses", With(kResponses, "false")));
  const Json& item = response["output"][1];
  EXPECT_EQ(item["type"], "custom_tool_call");
  EXPECT_EQ(item["input"], "a\nb");
  EXPECT_EQ(item["namespace"], "shell");
  EXPECT_FALSE(item.contains("arguments"));
  const Chat chat = LastChat();
  EXPECT_THAT(chat.tools, HasSubstr("Changes files.\\n\\nThe input must match this grammar"));
  EXPECT_THAT(chat.tools, HasSubstr("start: /.+/"));
  EXPECT_EQ(chat.text_tools.at("patch")->kind, GrammarSpec::Kind::kEbnf);
  EXPECT_FALSE(chat.text_tools.at("run").has_value());
  // Kept as a call of the function that the model knows.
  Taken("/v1/responses", StrCat(R"({"input": [{"type": "custom_tool_call_output", "call_id": ")",
                                item["call_id"].get<std::string>(),
                                R"(", "output": "done"}], "previous_response_id": ")",
                                response["id"].get<std::string>(), "\"}"));
  EXPECT_EQ(LastChat().messages[1].tool_calls[0].arguments, R"({"input":"a\nb"})");
  EXPECT_EQ(LastChat().messages[2].content, "done");
}

TEST_F(CustomToolsTest, AStreamOfAResponseHasEventsOfTheText) {
  const std::string body = Taken("/v1/responses", With(kResponses, "true"));
  for (const char* part :
       {R"("type":"custom_tool_call","call_id":)", "event: response.custom_tool_call_input.delta\n",
        R"("delta":"a")", R"("delta":"\nb")", "event: response.custom_tool_call_input.done\n",
        R"("input":"a\nb"})"}) {
    EXPECT_THAT(body, HasSubstr(part));
  }
  EXPECT_EQ(body.find("function_call"), body.npos);
}

TEST_F(CustomToolsTest, AChatHasTheTextOfACall) {
  const Json chat = Json::parse(Taken("/v1/chat/completions", With(kChat, "false")));
  const Json& call = chat["choices"][0]["message"]["tool_calls"][0];
  EXPECT_EQ(call["type"], "custom");
  EXPECT_EQ(call["custom"], Json({{"name", "run"}, {"input", "a\nb"}}));
  EXPECT_FALSE(call.contains("function"));
  EXPECT_EQ(chat["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(LastChat().messages[1].tool_calls[0].arguments, R"({"input":"say \"hi\""})");
  EXPECT_EQ(LastChat().text_tools.at("run")->kind, GrammarSpec::Kind::kRegex);
  const std::string stream = Taken("/v1/chat/completions", With(kChat, "true"));
  EXPECT_THAT(stream, HasSubstr(R"("type":"custom","custom":{"name":"run","input":"a"}})"));
  EXPECT_THAT(stream, HasSubstr(R"([{"index":0,"custom":{"input":"\nb"}}])"));
}

TEST_F(CustomToolsTest, ChoicesNameAToolWithItsType) {
  const std::string chat = With(kChat, "false", R"(,"tool_choice":)");
  const auto chosen = [&](const std::string& choice) {
    return StrCat(chat.substr(0, chat.size() - 1), choice, "}");
  };
  Taken("/v1/chat/completions", chosen(R"({"type": "custom", "custom": {"name": "run"}})"));
  EXPECT_EQ(LastChat().forced_tool, "run");
  // Those that are allowed alone.
  Taken("/v1/chat/completions",
        chosen(R"({"type": "allowed_tools", "allowed_tools": {"mode": "auto",
      "tools": [{"type": "function", "function": {"name": "f"}}]}})"));
  EXPECT_EQ(LastChat().tools.find("run"), std::string::npos);
  EXPECT_TRUE(LastChat().text_tools.empty());
  EXPECT_FALSE(LastChat().forced_tool.has_value());
  Taken("/v1/chat/completions", chosen(R"({"type": "allowed_tools", "allowed_tools": {"mode":
      "required", "tools": [{"type": "custom", "custom": {"name": "run"}}]}})"));
  EXPECT_EQ(LastChat().forced_tool, "run");
  for (const auto& [choice, what] : std::vector<std::pair<std::string, std::string>>{
           {R"({"type": "function", "function": {"name": "run"}})", "run, which is a custom tool"},
           {R"({"type": "custom", "custom": {"name": "f"}})", "f, which is a function"},
           {R"({"type": "custom", "custom": {"name": "g"}})", "names g; allowed"},
           {R"({"type": "custom"})", "tool_choice is"},
           {R"({"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": []}})",
            "tool_choice.allowed_tools.mode"},
           {R"({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}})",
            "tool_choice.allowed_tools.tools"}}) {
    ExpectRefused("/v1/chat/completions", chosen(choice), what);
  }
  const std::string responses = With(kResponses, "false", R"(,"tool_choice":)");
  const auto named = [&](const std::string& choice) {
    return StrCat(responses.substr(0, responses.size() - 1), choice, "}");
  };
  Taken("/v1/responses", named(R"({"type": "custom", "name": "patch"})"));
  EXPECT_EQ(LastChat().forced_tool, "patch");
  Taken("/v1/responses", named(R"({"type": "allowed_tools", "mode": "auto", "tools": [
      {"type": "custom", "name": "run"}, {"type": "web_search"}]})"));
  EXPECT_EQ(LastChat().text_tools.size(), 1u);
  // Without tools there are none to allow.
  for (const char* mode : {"auto", "required"}) {
    ExpectRefused("/v1/responses",
                  StrCat(R"({"input": "q", "tool_choice": {"type": "allowed_tools", "mode": ")",
                         mode, R"(", "tools": [{"type": "function", "name": "x"}]}})"),
                  "tool_choice names x; allowed");
  }
  Taken("/v1/responses", named(R"("none")"));
  EXPECT_TRUE(LastChat().text_tools.empty());
  ExpectRefused("/v1/responses", named(R"({"type": "function", "name": "patch"})"),
                "patch, which is a custom tool");
}

TEST_F(CustomToolsTest, FormatsAreCheckedByName) {
  const auto tool = [](const std::string& format) {
    return StrCat(R"({"input": "q", "tools": [{"type": "custom", "name": "x", "format": )", format,
                  "}]}");
  };
  Taken("/v1/responses", tool(R"({"type": "text"})"));
  for (const auto& [format, what] : std::vector<std::pair<std::string, std::string>>{
           {R"({"type": "json"})", "tools[0].format.type"},
           {R"({"type": "grammar", "definition": "a"})", "tools[0].format.syntax"},
           {R"({"type": "grammar", "syntax": "gbnf", "definition": "a"})",
            "tools[0].format.syntax"},
           {R"({"type": "grammar", "syntax": "lark"})", "tools[0].format.definition"}}) {
    ExpectRefused("/v1/responses", tool(format), what);
  }
  ExpectRefused("/v1/responses", R"({"input": "q", "tools": [{"type": "custom", "name": "x"},
                                     {"type": "function", "name": "x"}]})",
                "the name x twice");
  ExpectRefused("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "q"}],
      "tools": [{"type": "custom", "custom": {"name": "x", "format": {"type": "grammar"}}}]})",
                "tools[0].custom.format.grammar");
}

TEST_F(CustomToolsTest, ExamplesOfMessagesToolsAreShown) {
  const std::string body = R"({"max_tokens": 9, "messages": [{"role": "user", "content": "q"}],
      "tools": [{"name": "t", "input_schema": {"type": "object"}, "input_examples": EXAMPLES}]})";
  const auto with = [&](const std::string& examples) {
    return std::string(body).replace(body.find("EXAMPLES"), 8, examples);
  };
  Taken("/v1/messages", with(R"([{"city": "Oslo"}, {"city": "Rome", "days": 2}])"));
  EXPECT_THAT(LastChat().tools, HasSubstr(R"(Examples of the input:\n{\"city\":\"Oslo\"})"));
  Taken("/v1/messages", with(R"([{"n": 123456789012345678901234567890}])"));
  EXPECT_THAT(LastChat().tools, HasSubstr(R"({\"n\":123456789012345678901234567890})"));
  ExpectRefused("/v1/messages", with(R"(["Oslo"])"), "tools[0].input_examples");
}

TEST_F(CustomToolsTest, TheInputOfAResponsesItemIsAText) {
  const auto with = [](const std::string& input) {
    return StrCat(R"({"input": [{"role": "user", "content": "q"}, {"type": "custom_tool_call",)",
                  R"("call_id": "c", "name": "p")", input, "}]}");
  };
  Taken("/v1/responses", with(R"(, "input": "a\nb")"));
  EXPECT_EQ(LastChat().messages.back().tool_calls[0].arguments, R"({"input":"a\nb"})");
  for (const char* input : {"", R"(, "input": {"a": 1})", R"(, "input": 5)"}) {
    ExpectRefused("/v1/responses", with(input), "input[1].input");
  }
}

TEST_F(CustomToolsTest, ModelsInAnthropicsForm) {
  const auto ask = [&](const std::string& path) {
    return endpoint_.Ask("GET", path, "", "anthropic-version: 2023-06-01\r\n");
  };
  const Json list = Json::parse(ask("/v1/models?limit=5").body);
  ASSERT_EQ(list["data"].size(), 1u);
  const std::string id = list["data"][0]["id"];
  EXPECT_EQ(list["data"][0]["type"], "model");
  EXPECT_EQ(list["has_more"], false);
  EXPECT_EQ(list["first_id"], id);
  EXPECT_EQ(Json::parse(ask("/v1/models/" + id).body)["display_name"], id);
  EXPECT_EQ(Json::parse(ask("/v1/models?after_id=" + id).body)["data"].size(), 0u);
  for (const char* query : {"limit=0", "limit=x", "after_id=none", "before_id=a&after_id=b"}) {
    const ClientResponse response = ask(StrCat("/v1/models?", query));
    EXPECT_EQ(response.status, 400) << query;
    EXPECT_EQ(Json::parse(response.body)["type"], "error");
  }
  EXPECT_EQ(Json::parse(ask("/v1/models/none").body)["error"]["type"], "not_found_error");
  // OpenAI's form has the same parameters.
  EXPECT_EQ(Json::parse(endpoint_.Ask("GET", "/v1/models?limit=1", "").body)["data"].size(), 1u);
  EXPECT_EQ(Json::parse(endpoint_.Ask("GET", "/v1/models?after_id=" + id, "").body)["data"].size(),
            0u);
  const ClientResponse refused = endpoint_.Ask("GET", "/v1/models?limit=0", "");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(Json::parse(refused.body)["error"]["param"], "limit");
}

}  // namespace
}  // namespace millrace
