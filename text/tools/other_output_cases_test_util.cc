#include "text/tools/output_cases_test_util.h"

namespace millrace {

std::vector<OutputCase> OtherOutputCases() {
  return {
      // Reasoning: what is in it, and where it ends.
      {"qwen3_coder",
       "qwen3",
       "I "
       "look.\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</"
       "tool_call>",
       {"", "I look.", {R"(f({"a": 1}))"}},
       true},
      {"hermes",
       "qwen3",
       "<think>I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
       {"", "I look.", {"f({})"}}},
      {"hermes",
       "qwen3",  // the thought closes
       "A\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n</think>\n\nB",
       {"B", "A\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", {}},
       true},
      {"hermes",
       "qwen3",
       "Should I write <tool_call>? No, a <tool_call>{ is",
       {"", "Should I write <tool_call>? No, a <tool_call>{ is", {}},
       true},
      {"hermes", "qwen3", "A\n</think>\n\n</think>\n\nB", {"B", "A", {}}, true},
      {"hermes", "qwen3", "A</think><think>B</think>C", {"C", "A\n\nB", {}}, true},
      {"hermes", "qwen3", "</think>\n\nB", {"B", "", {}}},
      {"hermes", "qwen3", " </think> ends it", {" </think> ends it", "", {}}},
      {"hermes", "qwen3", "A</think>B </think> C", {"B </think> C", "A", {}}, true},
      {"none", "granite", "Here's my thought process: A\n\nHere's my response: B", {"B", "A", {}}},
      {"none",
       "granite",
       "<think>A</think>\n<response>B <response> C</response> D</response>\n",
       {"B <response> C</response> D", "A", {}}},
      {"granite",
       "granite",
       "<think>A</think><response>B</response><|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]",
       {"B</response>", "A", {"f({})"}}},
      // gpt-oss.
      {"openai",
       "openai_gptoss",
       "<|channel|>analysis<|message|>The user.<|end|><|start|>assistant<|channel|>commentary "
       "to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>",
       {"", "The user.", {"f({\"a\": 1})"}}},
      {"openai",
       "openai_gptoss",
       "<|channel|>analysis<|message|>A<|end|><|start|>assistant "
       "to=functions.f<|channel|>commentary "
       "json<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>B",
       {"B", "A", {"f({})"}}},
      {"openai",
       "openai_gptoss",
       "<|channel|>commentary to=functions.<|message|>{}<|call|>",  // calls nothing
       {"{}", "", {}}},
      {"openai", "openai_gptoss", "plain text", {"plain text", "", {}}},
      // Literals.
      {"lfm2",
       "none",
       "I look.\n<|tool_call_start|>[f(a=1, s='it\\'s \"x\"'), get_weather(city=\"B\\n\")] "
       "<|tool_call_end|>Done.",
       {"I look.Done.",
        "",
        {R"(f({"a": 1, "s": "it's \"x\""}))", R"(get_weather({"city": "B\n"}))"}}},
      {"lfm2",
       "none",
       "[g(l=[1, (2, -3.5), {'k': True, 2: None}], t=\"\"\"a \"b\"\nc\"\"\", e='', "
       "u='\\u00e9\\x41', )]",
       {"[g(l=[1, (2, -3.5), {'k': True, 2: None}], t=\"\"\"a \"b\"\nc\"\"\", e='', "
        "u='\\u00e9\\x41', )]",
        "",
        {}}},  // no tool is called so
      {"lfm2",
       "none",
       "<|tool_call_start|>[g(l=[1, (2, -3.5), {'k': True, 2: None}], t=\"\"\"a \"b\"\nc\"\"\", "
       "e='', u='\\u00e9\\x41', )]<|tool_call_end|>",
       {"",
        "",
        {R"(g({"l": [1, [2, -3.5], {"k": true, "2": null}], "t": "a \"b\"\nc", "e": "", )"
         R"("u": "\u00e9\u0041"}))"}}},
      {"lfm2",
       "none",
       "<|tool_call_start|>[f('x', 'y' 'z'), f(s=12), f(7, True), g(a=1_000, b=0x1F, c=.5, d=+3, "
       "e=1., f=r'\\d', h=word, i=date(2, [1]))]<|tool_call_end|>",
       {"",
        "",
        {R"(f({"a": "x", "s": "yz"}))", R"(f({"s": "12"}))", R"(f({"a": 7, "s": "True"}))",
         R"(g({"a": 1000, "b": 31, "c": 0.5, "d": 3, "e": 1.0, "f": "\\d", "h": "word", )"
         R"x("i": "date(2, [1])"}))x"}}},
      {"lfm2",
       "none",
       "<|tool_call_start|>[g(a=0o17, b=0b101, c=-0XfF, d=., e=0o8, f=0b2, h=0x, i=00, "
       "j=0xffffffffffffffff)]<|tool_call_end|>",
       {"",
        "",
        {R"(g({"a": 15, "b": 5, "c": -255, "d": ".", "e": "0o8", "f": "0b2", "h": "0x", )"
         R"("i": "00", "j": "0xffffffffffffffff"}))"}}},
      {"lfm2",
       "none",
       R"(<|tool_call_start|>[{"name": "f", "arguments": {"a": 1}}]<|tool_call_end|>)",
       {"", "", {"f({\"a\": 1})"}}},
      {"lfm2", "none", "<|tool_call_start|>[f(s='cut ", {"", "", {R"(f({"s": "cut "}))"}}},
      {"lfm2",
       "none",
       "See [f](x) and <|tool_call_start|>nothing",
       {"See [f](x) and <|tool_call_start|>nothing", "", {}}},
      {"pythonic",
       "none",
       "[f(a=1), get_weather(city='P')]",
       {"", "", {"f({\"a\": 1})", "get_weather({\"city\": \"P\"})"}}},
      {"pythonic", "none", "<|python_start|>[f()]<|python_end|>", {"", "", {"f({})"}}},
      {"pythonic", "none", "[Bob(a=1)] is [f()]", {"[Bob(a=1)] is [f()]", "", {}}},
      {"pythonic", "none", "[1] is a reference", {"[1] is a reference", "", {}}},
      {"olmo3",
       "none",
       "<function_calls>\nf(a=true)\ng(x=null)\n</function_calls>",
       {"", "", {"f({\"a\": true})", "g({\"x\": null})"}}},
      {"gemma4",
       "gemma4",
       "<|channel>thought\nHm.\n<channel|>I look.<|tool_call>call:f{s:<|\"|>a, \"b\" {c}<|\"|>,a:1}"
       "<tool_call|><|tool_call>call:g{o:{k:[true,<|\"|>x<|\"|>],<|\"|>q r<|\"|>:null},w:bare word}"
       "<tool_call|>",
       {"I look.",
        "Hm.",
        {R"(f({"s": "a, \"b\" {c}", "a": 1}))",
         R"(g({"o": {"k": [true, "x"], "q r": null}, "w": "bare word"}))"}}},
      {"gemma4", "gemma4", "<|channel>thought\n<channel|>Yes.", {"Yes.", "", {}}},
      {"gemma4", "gemma4", "<|channel>thoughtful<channel|>Yes.", {"Yes.", "thoughtful", {}}},
      {"gemma4", "gemma4", "<|channel>th<channel|>Yes.", {"Yes.", "th", {}}},
      {"functiongemma",
       "none",
       "<start_function_call>call:get_weather{city:<escape>Oslo<escape>}<end_function_call>",
       {"", "", {"get_weather({\"city\": \"Oslo\"})"}}},
      {"mirothinker",
       "none",
       "I look.\n<use_mcp_tool>\n<server_name>s</server_name>\n<tool_name>f</tool_name>\n"
       "<arguments>\n{\"a\": 1}\n</arguments>\n<server_name>t</server_name>\n<tool_name>g"
       "</tool_name>\n<arguments>\n{}\n</arguments>\n</use_mcp_tool>",
       {"I look.", "", {"f({\"a\": 1})", "g({})"}}},
      {"phi4_mini_json",
       "none",
       R"(<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|>)",
       {"", "", {"f({\"a\": 1})"}}},
      {"phi4_mini_json",
       "none",
       R"(functools[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}])",
       {"", "", {"f({\"a\": 1})", "g({})"}}},
      // Recipients.
      {"functionary_v32", "none", "all\nHello.\n", {"Hello.\n", "", {}}},
      {"functionary_v32", "none", "f\n{\"a\": 1}", {"", "", {"f({\"a\": 1})"}}},
      {"functionary_v32",
       "none",
       ">>>all\nI >> look.>>>f\n{'a': True}\n>>>get_weather\n{\"city\": \"P\"}",
       {"I >> look.", "", {"f({\"a\": true})", "get_weather({\"city\": \"P\"})"}}},
      {"functionary_v32", "none", "allow me >>>none\n{}", {"allow me >>>none\n{}", "", {}}},
      {"functionary_v32", "none", "f\nis a letter", {"f\nis a letter", "", {}}},
      {"openai", "openai_gptoss", "<|channel|>final<|message|>B<|return|>", {"B", "", {}}},
  };
}

}  // namespace millrace
