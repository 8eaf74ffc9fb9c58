#include "engine/text/chat_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/text_set.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr char kTools[] =
    R"([{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}])";

Chat Conversation() {
  Chat chat;
  chat.tools = kTools;
  chat.parse_tools = true;
  chat.messages = {
      {.role = "user", .content = "q"},
      {.role = "assistant", .tool_calls = {{.id = "1", .name = "f", .arguments = R"({"b":1})"}}},
      {.role = "tool", .content = "r", .tool_call_id = "1"},
      {.role = "tool", .content = "s", .tool_call_id = "2"}};
  return chat;
}

std::string Render(const std::string& source, const Chat& chat, const ParserNames& parsers = {}) {
  const auto chat_template = ChatTemplate::Parse(source, {});
  const auto format = MakeChatFormat(source, chat_template, parsers);
  const TextSet text(std::make_unique<ByteTokenizer>(), chat_template, *format);
  TokenizeRequest request;
  request.prompt = chat;
  const auto tokens = text.PromptTokens(request, 1 << 20, SteadyTime::max());
  if (!tokens.ok()) return std::string(tokens.status().message());
  return {tokens->begin(), tokens->end()};
}

TEST(ChatFormatTest, ATemplateThatKnowsToolsGetsThem) {
  const std::string source =
      "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% if m.tool_calls %}<tool_call>"
      "{% for c in m.tool_calls %}{{ c.function }}{% endfor %}{% elif m.role == 'tool' %}"
      "[{{ m.tool_call_id }}]{% endif %}{% endfor %}";
  EXPECT_EQ(Render(source, Conversation()),
            std::string(R"([{"type": "function", "function": )") +
                R"({"name": "f", "parameters": {"z": 1, "a": 2}}}])" +
                "q<tool_call>{'name': 'f', 'arguments': {'b': 1}}r[1]s[2]");
}

TEST(ChatFormatTest, ATemplateMayWantArgumentsAsText) {
  const std::string source =
      "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}"
      "{{ '<tool_call>' + c.function.name + c.function.arguments }}{% endfor %}{% endfor %}";
  EXPECT_THAT(Render(source, Conversation()), HasSubstr(R"(<tool_call>f{"b":1})"));
}

TEST(ChatFormatTest, ATemplateThatKnowsNoToolsGetsText) {
  const std::string source = "{% for m in messages %}({{ m.role }}:{{ m.content }}){% endfor %}";
  const std::string text = Render(source, Conversation());
  EXPECT_THAT(text, HasSubstr("(system:You can call functions."));
  EXPECT_THAT(
      text, HasSubstr(R"({"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}})"));
  EXPECT_THAT(text,
              HasSubstr("(user:q)(assistant:<tool_call>\n{\"name\": \"f\", \"arguments\": "
                        "{\"b\":1}}\n</tool_call>)(user:<tool_response>\nr\n</tool_response>\n"
                        "<tool_response>\ns\n</tool_response>)"));
}

TEST(ChatFormatTest, ToolsWithoutAKnownFormAreRefused) {
  EXPECT_THAT(Render("{{ tools }}", Conversation()), HasSubstr("--tool-call-parser"));
  EXPECT_THAT(Render("x", Conversation(), {.tools = "none"}), HasSubstr("--tool-call-parser"));
}

TEST(ChatFormatTest, AForcedCallEndsThePrompt) {
  Chat chat = Conversation();
  chat.forced_tool = "f";
  EXPECT_EQ(
      Render("p<tool_call>tools{{ '<think>\n' }}", chat),
      "p<tool_call>tools<think>\n\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": ");
}

TEST(ChatFormatTest, EffortGoesToTemplatesThatReadIt) {
  Chat chat;
  chat.messages = {{.role = "user", .content = "q"}};
  chat.reasoning_effort = "low";
  EXPECT_EQ(Render("{{ reasoning_effort }}", chat), "low");
  EXPECT_EQ(Render("x", chat), "x");  // a hint
  chat.reasoning_effort = "none";
  EXPECT_EQ(Render("{{ enable_thinking }}", chat), "False");
  EXPECT_EQ(Render("x", chat), "x");
}

TEST(ChatFormatTest, ReadsSignatures) {
  const auto tools = ToolSignatures(kTools);
  ASSERT_EQ(tools.size(), 1U);
  EXPECT_EQ(tools[0].name, "f");
  EXPECT_EQ(tools[0].parameters, R"({"z":1,"a":2})");
  EXPECT_TRUE(ToolSignatures("").empty());
}

}  // namespace
}  // namespace millrace
