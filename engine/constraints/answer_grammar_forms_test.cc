// Calls in each form that models write, beside reasoning and beside a format of the answer.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "engine/constraints/answer_grammar_test_util.h"

namespace millrace {
namespace {

struct Form {
  const char* parser;
  std::string call;  // of f, with n = 1
  std::string bad;   // n is no integer
  std::string two;   // f and then g
};

std::vector<Form> Forms() {
  const std::string ds = "<｜tool▁calls▁begin｜>", de = "<｜tool▁calls▁end｜>";
  const std::string kimi = "<|tool_calls_section_begin|>";
  const auto kimi_call = [](const std::string& name, const std::string& arguments) {
    return "<|tool_call_begin|>functions." + name + "<|tool_call_argument_begin|>" + arguments +
           "<|tool_call_end|>";
  };
  const auto v3 = [](const std::string& name, const std::string& arguments) {
    return "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + name + "\n```json\n" + arguments +
           "\n```<｜tool▁call▁end｜>";
  };
  const auto coder = [](const std::string& value) {
    return "<tool_call>\n<function=f>\n<parameter=n>\n" + value +
           "\n</parameter>\n</function>\n</tool_call>";
  };
  const auto glm = [](const std::string& value) {
    return "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>" + value + "</arg_value>\n</tool_call>";
  };
  const auto minimax = [](const std::string& value) {
    return "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"n\">" + value +
           "</parameter>\n</invoke>\n";
  };
  const auto v32 = [](const std::string& value) {
    return "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"n\" "
           "string=\"false\">" +
           value + "</｜DSML｜parameter>\n</｜DSML｜invoke>\n";
  };
  return {
      {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>",
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1.5}}\n</tool_call>",
       "<tool_call>{\"name\":\"f\",\"arguments\":{\"n\":1}}</tool_call>\n<tool_call>\n{\"name\": "
       "\"g\", \"arguments\": {\"x\": 1}}\n</tool_call>"},
      {"llama3_json", R"({"name": "f", "parameters": {"n": 1}})",
       R"({"name": "f", "parameters": {"n": "1"}})",
       R"({"type": "function", "name": "f", "parameters": {"n": 1}}; {"name": "g", "parameters": {}})"},
      {"mistral", R"([TOOL_CALLS]f[ARGS]{"n": 1})", R"([TOOL_CALLS]f[ARGS]{"n": "x"})",
       R"([TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"n": 1}[TOOL_CALLS]g[ARGS]{})"},
      {"granite", R"(<|tool_call|>[{"name": "f", "arguments": {"n": 1}}])",
       R"(<|tool_call|>[{"name": "f", "arguments": {"n": []}}])",
       R"(<|tool_call|>[{"name": "f", "arguments": {"n": 1}}, {"name": "g", "arguments": {}}])"},
      {"deepseek_v3", ds + v3("f", R"({"n": 1})") + de, ds + v3("f", R"({"n": "a"})") + de,
       ds + v3("f", R"({"n": 1})") + "\n" + v3("g", "{}") + de},
      {"deepseek_v31",
       ds + R"(<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"n": 1}<｜tool▁call▁end｜>)" + de,
       ds + R"(<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"n": 1.5}<｜tool▁call▁end｜>)" + de, ""},
      {"kimi_k2", kimi + kimi_call("f:0", R"({"n": 1})") + "<|tool_calls_section_end|>",
       kimi + kimi_call("f:0", R"({"n": ""})") + "<|tool_calls_section_end|>",
       kimi + kimi_call("f:0", R"({"n": 1})") + kimi_call("g:1", "{}") +
           "<|tool_calls_section_end|>"},
      {"qwen3_coder", coder("1"), coder("x"),
       coder("1") + "\n<tool_call>\n<function=g>\n</function>\n</tool_call>"},
      {"glm45", glm("1"), glm("x"), glm("1") + "\n<tool_call>g\n</tool_call>"},
      {"minimax_m2", minimax("1") + "</minimax:tool_call>", minimax("x") + "</minimax:tool_call>",
       minimax("1") + "<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>"},
      {"deepseek_v32", v32("1") + "</｜DSML｜function_calls>",
       v32("x") + "</｜DSML｜function_calls>",
       v32("1") + "<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"},
      {"glm47", "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value></tool_call>",
       "<tool_call>f<arg_key>n</arg_key><arg_value>x</arg_value></tool_call>",
       "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value></tool_call><tool_call>g</"
       "tool_call>"},
      {"lfm2", "<|tool_call_start|>[f(n=1, s='it\"s')]<|tool_call_end|>",
       "<|tool_call_start|>[f(n=\"1\")]<|tool_call_end|>",
       "<|tool_call_start|>[f(n=1), g(x={'a': [True, None]})]<|tool_call_end|>"},
      {"pythonic", "[f(n=1)]", "[f(n=None)]", "[f(n=1, s=\"x\"), g()]"},
      {"olmo3", "<function_calls>\nf(n=1)\n</function_calls>",
       "<function_calls>\nf(n='1')\n</function_calls>",
       "<function_calls>\nf(n=1)\ng(y=2)\n</function_calls>"},
      {"gemma4", "<|tool_call>call:f{n:1,s:<|\"|>a \"b\", c<|\"|>}<tool_call|>",
       "<|tool_call>call:f{n:<|\"|>1<|\"|>}<tool_call|>",
       "<|tool_call>call:f{n:1}<tool_call|><|tool_call>call:g{x:{y:[true,<|\"|>z<|\"|>]}}<tool_"
       "call|>"},
      {"functiongemma", "<start_function_call>call:f{n:1}<end_function_call>",
       "<start_function_call>call:f{n:<escape>1<escape>}<end_function_call>", ""},
      {"mirothinker",
       "<use_mcp_tool>\n<server_name>s-1</server_name>\n<tool_name>f</tool_name>\n<arguments>\n"
       "{\"n\": 1}\n</arguments>\n</use_mcp_tool>",
       "<use_mcp_tool>\n<server_name>s-1</server_name>\n<tool_name>f</tool_name>\n<arguments>\n"
       "{\"n\": []}\n</arguments>\n</use_mcp_tool>",
       ""},
      {"openai",
       R"(<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n": 1}<|call|>)",
       R"(<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n": "x"}<|call|>)",
       R"(<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary )"
       R"(to=functions.f<|message|>{"n": 1}<|call|><|start|>assistant to=functions.g<|channel|>)"
       R"(commentary json<|message|>{}<|call|>)"},
  };
}

std::string ReasoningOf(const Form& form) {
  return std::string(form.parser) == "openai" ? "openai_gptoss" : "qwen3";
}

TEST(AnswerGrammarTest, AStrictToolIsHeldInEachFormWhereTheModelDecides) {
  for (const Form& form : Forms()) {
    const bool channels = ReasoningOf(form) == "openai_gptoss";
    const Asked asked = {
        .chat = WithTools(kTwoTools), .parser = form.parser, .reasoning = ReasoningOf(form)};
    const std::string text = channels ? "<|channel|>final<|message|>Only text." : "Only text.";
    EXPECT_TRUE(Takes(asked, text)) << form.parser;
    EXPECT_TRUE(Takes(asked, form.call)) << form.parser;
    EXPECT_FALSE(Takes(asked, form.bad)) << form.parser;
    EXPECT_TRUE(form.two.empty() || Takes(asked, form.two)) << form.parser;
    if (channels) continue;
    EXPECT_TRUE(Takes(asked, "<think>\na {b}\n</think>\n\n" + form.call)) << form.parser;
    EXPECT_FALSE(Takes(asked, "<think>\na\n</think>\n\n" + form.bad)) << form.parser;
    Asked inside = asked;
    inside.start = AnswerStart::kInReasoning;
    EXPECT_TRUE(Takes(inside, "thoughts</think>" + form.call)) << form.parser;
    EXPECT_FALSE(Takes(inside, form.call)) << form.parser;
    // A call after text, where the form has a marker of its own.
    const std::string_view parser = form.parser;
    if (parser == "llama3_json" || parser == "pythonic") continue;
    EXPECT_TRUE(Takes(asked, "I look. " + form.call)) << form.parser;
    EXPECT_FALSE(Takes(asked, "I look. " + form.bad)) << form.parser;
  }
}

TEST(AnswerGrammarTest, MessagesWithRecipientsAreHeld) {
  const Asked asked = {
      .chat = WithTools(kTwoTools), .parser = "functionary_v32", .reasoning = "none"};
  EXPECT_TRUE(Takes(asked, "all\nOnly text."));
  EXPECT_TRUE(Takes(asked, "f\n{\"n\": 1}"));
  EXPECT_FALSE(Takes(asked, "f\n{\"n\": \"1\"}"));
  EXPECT_TRUE(Takes(asked, "all\nI look.>>>f\n{\"n\": 1}>>>g\n{\"any\": [1]}"));
  EXPECT_FALSE(Takes(asked, "all\nI look.>>>f\n{}"));
  Asked format = asked;
  format.format = "yes|no";
  EXPECT_TRUE(Takes(format, "all\nyes"));
  EXPECT_TRUE(Takes(format, "f\n{\"n\": 1}"));
  EXPECT_FALSE(Takes(format, "all\nI look.>>>f\n{\"n\": 1}"));
  EXPECT_TRUE(Takes(Forced("f"), "functionary_v32", "{\"n\": 1}"));
  EXPECT_TRUE(Takes(Forced(""), "functionary_v32", "f\n{\"n\": 1}"));
}

TEST(AnswerGrammarTest, AListOfMistralsIsHeldToo) {
  OutputFormat format = *OutputFormat::Choose("[TOOL_CALLS]", "auto", "none");
  const Chat chat = WithTools(kTwoTools);
  const auto spec = AnswerGrammar({.chat = &chat}, format);
  ASSERT_TRUE(spec.ok() && spec->has_value());
  EXPECT_TRUE((*spec)->free_tokens);
  const auto grammar = *Grammar::Compile((*spec)->grammar, kUnhurried);
  EXPECT_TRUE(grammar->Matches(R"([TOOL_CALLS][{"name": "f", "arguments": {"n": 1}}])"));
  EXPECT_TRUE(grammar->Matches(
      R"([TOOL_CALLS] [{"name": "f", "arguments": {"n": 1}}, {"name": "g", "arguments": {}}])"));
  EXPECT_FALSE(grammar->Matches(R"([TOOL_CALLS][{"name": "f", "arguments": {"n": "1"}}])"));
}

TEST(AnswerGrammarTest, WithAFormatAnAnswerIsCallsOrTheFormatInEachForm) {
  for (const Form& form : Forms()) {
    const bool channels = ReasoningOf(form) == "openai_gptoss";
    for (const char* tools : {kTwoTools, kFreeTools}) {
      Asked asked = {.chat = WithTools(tools),
                     .parser = form.parser,
                     .reasoning = ReasoningOf(form),
                     .format = "yes|no"};
      const std::string begin = channels ? "<|channel|>final<|message|>" : "";
      EXPECT_TRUE(Takes(asked, begin + "yes")) << form.parser;
      EXPECT_FALSE(Takes(asked, begin + "maybe")) << form.parser;
      EXPECT_TRUE(Takes(asked, form.call)) << form.parser;
      EXPECT_EQ(Takes(asked, form.bad), tools == kFreeTools) << form.parser;
      // Text beside a call is no instance of the format.
      EXPECT_FALSE(Takes(asked, "I look. " + form.call)) << form.parser;
      if (tools == kTwoTools && !form.two.empty()) {
        EXPECT_TRUE(Takes(asked, form.two)) << form.parser;
        asked.parallel = false;
        EXPECT_FALSE(Takes(asked, form.two)) << form.parser;
        EXPECT_TRUE(Takes(asked, form.call)) << form.parser;
      }
      if (channels) continue;
      asked.start = AnswerStart::kInReasoning;
      EXPECT_TRUE(Takes(asked, "thoughts</think>\n" + form.call)) << form.parser;
      EXPECT_TRUE(Takes(asked, "thoughts</think>\nyes")) << form.parser;
    }
  }
}

TEST(AnswerGrammarTest, AFormatHoldsTheContentAndNotTheReasoning) {
  const auto takes = [](AnswerStart start, std::string_view text) {
    return Takes({.parser = "none", .format = "yes|no", .start = start}, text);
  };
  EXPECT_TRUE(takes(AnswerStart::kInReasoning, "Is it {\"a\": 1}?\n</think>\n\nyes"));
  EXPECT_TRUE(takes(AnswerStart::kInReasoning, "</think>yes"));
  EXPECT_FALSE(takes(AnswerStart::kInReasoning, "yes"));
  EXPECT_FALSE(takes(AnswerStart::kInReasoning, "It is.</think>It is."));
  EXPECT_FALSE(takes(AnswerStart::kInReasoning, "It is.</think></think>yes"));
  EXPECT_FALSE(takes(AnswerStart::kInReasoning, "It is.</think>" + std::string(9, '\n') + "yes"));
  EXPECT_TRUE(takes(AnswerStart::kMayThink, "yes"));
  EXPECT_TRUE(takes(AnswerStart::kMayThink, "\n<think>It is.</think>yes"));
  EXPECT_FALSE(takes(AnswerStart::kMayThink, "It is.</think>yes"));
  EXPECT_TRUE(takes(AnswerStart::kContent, "yes"));
  EXPECT_FALSE(takes(AnswerStart::kContent, "<think>It is.</think>yes"));
  // Markers may be special tokens.
  const std::string open = "\xff<think>\xfe", close = "\xff</think>\xfe";
  EXPECT_TRUE(takes(AnswerStart::kMayThink, open + "It is." + close + "\n\nyes"));
  // A model without reasoning.
  EXPECT_TRUE(Takes({.parser = "none", .reasoning = "none", .format = "yes"}, "yes"));
  EXPECT_FALSE(
      Takes({.parser = "none", .reasoning = "none", .format = "yes"}, "<think>a</think>yes"));
}

TEST(AnswerGrammarTest, EachSpellingOfTheMarkersOpensAndClosesReasoning) {
  const Asked asked = {.parser = "none", .reasoning = "granite", .format = "yes|no"};
  EXPECT_TRUE(Takes(asked, "Here is my thought process: A b. Here is my response: yes"));
  EXPECT_TRUE(Takes(asked, "<think>A b.</think><response>yes</response>"));
  EXPECT_TRUE(Takes(asked, "yes"));
  EXPECT_FALSE(Takes(asked, "<think>A b.</think><response>maybe</response>"));
}

TEST(AnswerGrammarTest, AFormatHoldsTheFinalChannel) {
  const auto takes = [](std::string_view text, AnswerStart start = AnswerStart::kMayThink) {
    return Takes(
        {.parser = "none", .reasoning = "openai_gptoss", .format = "yes|no", .start = start}, text);
  };
  const std::string analysis = "<|channel|>analysis<|message|>Is it?<|end|><|start|>assistant";
  EXPECT_TRUE(takes("<|channel|>final<|message|>yes"));
  EXPECT_TRUE(takes(analysis + "<|channel|>final<|message|>yes<|return|>"));
  EXPECT_TRUE(takes(analysis + analysis + "<|channel|>final <|constrain|>json<|message|>no"));
  EXPECT_FALSE(takes(analysis + "<|channel|>final<|message|>It is."));
  EXPECT_FALSE(takes(analysis));
  EXPECT_FALSE(
      takes("<|channel|>commentary<|message|>I say.<|end|><|start|>assistant"
            "<|channel|>final<|message|>yes"));
  EXPECT_FALSE(takes("yes"));
  EXPECT_TRUE(takes("yes", AnswerStart::kContent));
}

}  // namespace
}  // namespace millrace
