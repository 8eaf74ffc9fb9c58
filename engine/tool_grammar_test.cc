#include "engine/tool_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/grammar/test_limits.h"

namespace millrace {
namespace {

constexpr char kTwoTools[] =
    R"([{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object",
        "properties":{"n":{"type":"integer"},"s":{"type":"string"}},"required":["n"],
        "additionalProperties":false}}},
        {"type":"function","function":{"name":"g"}}])";

Chat Forced(std::optional<std::string> tool, std::string tools = kTwoTools) {
  Chat chat;
  chat.tools = std::move(tools);
  chat.parse_tools = true;
  chat.forced_tool = std::move(tool);
  return chat;
}

bool Takes(const Chat& chat, const std::string& parser, std::string_view text,
           bool inside = false) {
  const auto spec = ToolGrammar(chat, *OutputFormat::Choose("", parser, "qwen3"), inside);
  EXPECT_TRUE(spec.ok()) << spec.status();
  const auto grammar = Grammar::Compile(**spec, kUnhurried);
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return (*grammar)->Matches(text);
}

TEST(ToolGrammarTest, AForcedCallIsHeldToItsSchema) {
  EXPECT_TRUE(Takes(Forced("f"), "hermes", R"({"n": 1}})"));
  EXPECT_TRUE(Takes(Forced("f"), "hermes", R"({"n": 1, "s": "x"}})"));
  EXPECT_FALSE(Takes(Forced("f"), "hermes", R"({"n": "1"}})"));
  EXPECT_FALSE(Takes(Forced("f"), "hermes", R"({"s": "x"}})"));
  EXPECT_TRUE(Takes(Forced("g"), "hermes", R"({"any": [1]}})"));
  EXPECT_TRUE(Takes(Forced("f"), "openai", R"({"n": 1})"));
}

TEST(ToolGrammarTest, AnyForcedCallIsOneOfTheTools) {
  EXPECT_TRUE(Takes(Forced(""), "hermes", R"(f", "arguments": {"n": 1}})"));
  EXPECT_TRUE(Takes(Forced(""), "hermes", R"(g", "arguments": {"x": 1}})"));
  EXPECT_FALSE(Takes(Forced(""), "hermes", R"(h", "arguments": {}})"));
  EXPECT_FALSE(Takes(Forced(""), "hermes", R"(f", "arguments": {}})"));
  EXPECT_TRUE(Takes(Forced(""), "openai", R"(f <|constrain|>json<|message|>{"n": 1})"));
}

TEST(ToolGrammarTest, ElementsAreHeldToTheirSchemas) {
  EXPECT_TRUE(
      Takes(Forced("f"), "qwen3_coder",
            "<parameter=n>\n1\n</parameter>\n<parameter=s>\na<b\n</parameter>\n</function>"));
  EXPECT_TRUE(Takes(Forced("f"), "qwen3_coder", "<parameter=n>\n1\n</parameter>\n</function>"));
  EXPECT_FALSE(Takes(Forced("f"), "qwen3_coder", "<parameter=n>\nx\n</parameter>\n</function>"));
  EXPECT_FALSE(Takes(Forced("f"), "qwen3_coder", "</function>"));
  const auto refused =
      ToolGrammar(Forced("f", R"([{"function":{"name":"f","parameters":{"minProperties":1}}}])"),
                  *OutputFormat::Choose("", "qwen3_coder", "none"), false);
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("minProperties"));
}

TEST(ToolGrammarTest, StrictToolsAreHeldToTheirSchemasBesideText) {
  const Chat chat = Forced(std::nullopt);
  const std::string call =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>";
  EXPECT_TRUE(Takes(chat, "hermes", "only text"));
  EXPECT_TRUE(Takes(chat, "hermes", "text " + call + "\n" + call));
  EXPECT_FALSE(Takes(chat, "hermes",
                     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1.5}}\n</tool_call>"));
  EXPECT_TRUE(Takes(chat, "hermes", "<think>a</think>" + call));
  EXPECT_TRUE(Takes(chat, "hermes", "thoughts</think>" + call, /*inside=*/true));
  EXPECT_FALSE(ToolGrammar(chat, *OutputFormat::Choose("", "llama3_json", "none"), false).ok());
}

TEST(ToolGrammarTest, OtherChatsAreFree) {
  const auto format = *OutputFormat::Choose("", "hermes", "none");
  EXPECT_FALSE(ToolGrammar(Chat(), format, false)->has_value());
  EXPECT_FALSE(ToolGrammar(Forced(std::nullopt, R"([{"function":{"name":"f"}}])"), format, false)
                   ->has_value());
}

}  // namespace
}  // namespace millrace
