#include "text/tools/output_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

std::string ToolsOf(std::string_view chat_template) {
  const auto format = OutputFormat::Choose(chat_template, "auto", "auto");
  return format->tools() == nullptr ? "" : format->tools()->name;
}

std::string ReasoningOf(std::string_view chat_template) {
  const auto format = OutputFormat::Choose(chat_template, "auto", "auto");
  return format->reasoning() == nullptr ? "" : format->reasoning()->name;
}

TEST(OutputFormatTest, TheTemplateChooses) {
  EXPECT_EQ(ToolsOf("{{ '<tool_call>' }}"), "hermes");
  EXPECT_EQ(ToolsOf("<tool_call>\n<function=x>\n<parameter=y>"), "qwen3_coder");
  EXPECT_EQ(ToolsOf("<tool_call><arg_key>"), "glm45");
  EXPECT_EQ(ToolsOf("<|start_header_id|>"), "llama3_json");
  EXPECT_EQ(ToolsOf("[TOOL_CALLS] ["), "mistral");
  EXPECT_EQ(ToolsOf("<|channel|>analysis<|message|>"), "openai");
  EXPECT_EQ(ToolsOf("<seed:tool_call>\n<function=x>\n<parameter=y>"), "seed_oss");
  EXPECT_EQ(ToolsOf("'<' + dsml_token + 'tool_calls>' ｜DSML｜"), "deepseek_v4");
  EXPECT_EQ(ToolsOf("｜DSML｜function_calls"), "deepseek_v32");
  EXPECT_EQ(ToolsOf("in <tool_call></tool_call> tags: <tool_calls>[{}]</tool_calls>"), "apriel");
  EXPECT_EQ(ToolsOf("<|tools_prefix|>"), "apertus");
  EXPECT_EQ(ToolsOf("<|START_ACTION|>["), "cohere");
  EXPECT_EQ(ToolsOf("'Action:\\n```json\\n'"), "command_r");
  EXPECT_EQ(ToolsOf("<|start_header_id|> functools["), "firefunction");
  EXPECT_EQ(ToolsOf("<|start_header_id|> <function="), "functionary_v31");
  EXPECT_EQ(ToolsOf("List of tools: <|tool_list_start|>["), "lfm2");
  EXPECT_EQ(ToolsOf("List of tools: ["), "lfm2");
  EXPECT_EQ(ToolsOf("'<|tool_call>call:' + name"), "gemma4");
  EXPECT_EQ(ToolsOf("<start_function_call>call:"), "functiongemma");
  EXPECT_EQ(ToolsOf("<|start_header_id|> '>>>all\\n'"), "functionary_v32");
  EXPECT_EQ(ToolsOf("<|start_header_id|> [name1(params_name1=value1)]"), "pythonic");
  EXPECT_EQ(ToolsOf("<|im_start|> <function_calls>"), "olmo3");
  EXPECT_EQ(ToolsOf("<use_mcp_tool> <tool_call>"), "mirothinker");
  EXPECT_EQ(ToolsOf("'<|tool|>' + message['tools'] + '<|/tool|>'"), "phi4_mini_json");
  EXPECT_EQ(ReasoningOf("<|channel>thought\n<channel|>"), "gemma4");
  EXPECT_EQ(ToolsOf("plain"), "");
  EXPECT_EQ(ReasoningOf("<|im_start|> '<think>\\n\\n</think>'"), "qwen3");
  EXPECT_EQ(ReasoningOf("<｜User｜> <think>"), "deepseek_r1");
  EXPECT_EQ(ReasoningOf("[THINK]"), "mistral");
  EXPECT_EQ(ReasoningOf("<|channel|>analysis<|message|>"), "openai_gptoss");
  EXPECT_EQ(ReasoningOf("<|START_THINKING|>"), "cohere");
  EXPECT_EQ(ReasoningOf("<|inner_prefix|>"), "apertus");
  EXPECT_EQ(ReasoningOf("<think></think><response></response>"), "granite");
  EXPECT_EQ(ReasoningOf("]~b]ai\n<think> <response>{{ result }}</response>"), "deepseek_r1");
  EXPECT_EQ(ReasoningOf("plain"), "");
}

TEST(OutputFormatTest, NamesAreVllms) {
  EXPECT_EQ(OutputFormat::Choose("", "granite", "none")->tools()->name, "granite");
  EXPECT_EQ(OutputFormat::Choose("<tool_call>", "none", "none")->tools(), nullptr);
  EXPECT_THAT(std::string(OutputFormat::Choose("", "hermes2", "none").status().message()),
              testing::StartsWith("tool-call-parser is hermes2; allowed: auto, none, hermes"));
  EXPECT_THAT(std::string(OutputFormat::Choose("", "none", "qwen").status().message()),
              testing::StartsWith("reasoning-parser is qwen; allowed: auto, none, deepseek_r1"));
}

TEST(OutputFormatTest, AForcedCallIsOne) {
  for (const std::string& name : OutputFormat::ToolParsers()) {
    if (name == "auto" || name == "none") continue;
    const auto format = *OutputFormat::Choose("", name, "qwen3");
    const auto parser = format.MakeParser({.tools = true, .signatures = {{"f", ""}}});
    OutputDelta delta;
    parser->Add(format.ForcedCall("f", ""), &delta);
    parser->Commit(&delta);
    const bool python = format.tools()->marked.arguments == ArgumentForm::kPython;
    if (format.tools()->kind != ToolFormat::Kind::kXml) {
      parser->Add(python ? "(a=1)" : "{\"a\": 1}", &delta);
    }
    ASSERT_EQ(delta.calls.size(), 1U) << name;
    EXPECT_EQ(delta.calls[0].name, "f") << name;
    EXPECT_EQ(delta.content, "") << name;
  }
}

TEST(OutputFormatTest, AForcedCallClosesTheReasoning) {
  const auto format = *OutputFormat::Choose("", "hermes", "qwen3");
  EXPECT_EQ(format.ForcedCall("f", "<|im_start|>assistant\n<think>\n"),
            "\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": ");
  EXPECT_EQ(format.ForcedCall("", "assistant\n"), "<tool_call>\n{\"name\": \"");
}

TEST(OutputFormatTest, APromptBeginsReasoning) {
  const auto format = *OutputFormat::Choose("", "hermes", "qwen3");
  EXPECT_TRUE(format.BeginsReasoning("assistant\n<think>\n"));
  EXPECT_FALSE(format.BeginsReasoning("assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(format.BeginsReasoning("What is <think> for?\nassistant\n"));
  // The answer goes on with what a client gave.
  EXPECT_TRUE(format.BeginsReasoning("assistant\n<think>\nSo", "<think>\nSo"));
  EXPECT_TRUE(format.BeginsReasoning("assistant\n<think>\nSo", " So "));
  EXPECT_FALSE(format.BeginsReasoning("assistant\n<think>\nSo</think>A", "So</think>A"));
  EXPECT_FALSE(format.BeginsReasoning("assistant\nYes", "Yes"));
}

TEST(OutputFormatTest, DerivesFromATemplate) {
  const auto format = DeriveToolFormat(
      "<user>q<model>TEXT<eot>", "TEXT",
      "<user>q<model><call>[{\"name\": \"probe\", \"parameters\": {}}]</call><eot>", "probe");
  ASSERT_TRUE(format.has_value());
  EXPECT_THAT(format->marked.open, testing::ElementsAre("<call>"));
  EXPECT_THAT(format->marked.close, testing::ElementsAre("</call>"));
  EXPECT_EQ(format->call_begins, "<call>[{\"name\": \"");
  EXPECT_EQ(format->arguments_begin, "\", \"parameters\": ");
  const auto bare =
      DeriveToolFormat("[A]TEXT", "TEXT", "[A]{\"name\": \"probe\", \"arguments\": {}}", "probe");
  EXPECT_TRUE(bare->marked.bare);
  EXPECT_FALSE(DeriveToolFormat("[A]TEXT", "TEXT", "[A]probe()", "probe").has_value());
  EXPECT_FALSE(DeriveToolFormat("[A]", "TEXT", "[A]", "probe").has_value());
}

}  // namespace
}  // namespace millrace
