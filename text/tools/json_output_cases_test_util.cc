#include "text/tools/output_cases_test_util.h"

namespace millrace {

std::vector<OutputCase> JsonOutputCases() {
  return {
      // Hermes and Qwen.
      {"hermes", "none", "Hello <b>there</b>.\n", {"Hello <b>there</b>.\n", "", {}}},
      {"hermes",
       "none",
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
       {"", "", {"f({\"a\": 1})"}}},
      {"hermes",
       "none",
       "Let me see.\n\n<tool_call>\n{\"arguments\": {\"s\": \"}</tool_call>\"}, \"name\": \"f\"}\n"
       "</tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>\nDone.",
       {"Let me see.Done.", "", {"f({\"s\": \"}</tool_call>\"})", "g({})"}}},
      {"hermes",
       "none",  // the object lacks its bracket
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>\nDone.",
       {"Done.", "", {"f({\"a\": 1})"}}},
      {"hermes",
       "none",
       "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 2}\"}</tool_call>",
       {"", "", {"f({\"a\": 2})"}}},
      {"hermes",
       "none",
       "<tool_call>no call</tool_call> <tool_cal",
       {"<tool_call>no call</tool_call> <tool_cal", "", {}}},
      {"hermes",
       "none",
       "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\"",  // the end is missing
       {"", "", {"f({\"a\": null})"}}},
      {"hermes", "none", "<tool_call>{\"nam", {"<tool_call>{\"nam", "", {}}},
      // JSON as models write it.
      {"hermes",
       "none",
       "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"a\n\\d\tb\\\"\", 'it': 'is \"so\\' "
       "}', key_1: "
       "True, \"l\": [None, 1.5,\n], }}</tool_call>",
       {"",
        "",
        {R"(f({"s": "a\n\\d\tb\"", "it": "is \"so' }", "key_1": true, "l": [null, 1.5)"
         "\n] }"
         ")"}}},
      {"hermes",
       "none",
       "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"x</tool_call>",
       {"", "", {R"(f({"a": [1, {"b": "x</tool_call>"}]}))"}}},
      {"hermes",
       "none",
       "<tool_call>{\"name\": 3}</tool_call>",
       {"<tool_call>{\"name\": 3}</tool_call>", "", {}}},
      // With reasoning before it.
      {"hermes",
       "qwen3",
       "<think>\nSo, a < b.\n</think>\n\nYes.\n<tool_call>{\"name\": \"f\", \"arguments\": {}}"
       "</tool_call>",
       {"Yes.", "So, a < b.", {"f({})"}}},
      {"hermes", "qwen3", "Thinking\n</think>\n\nYes.", {"Yes.", "Thinking", {}}, true},
      {"hermes", "qwen3", " \n<thin air", {" \n<thin air", "", {}}},
      {"none", "deepseek_r1", "<think>never ends </thi", {"", "never ends </thi", {}}},
      {"none", "mistral", "[THINK]ä[/THINK]ö", {"ö", "ä", {}}},
      {"none",
       "granite",
       "Here is my thought process: A\n\nHere is my response: B",
       {"B", "A", {}}},
      // Llama 3.
      {"llama3_json",
       "none",
       R"({"name": "f", "parameters": {"a": 1}})",
       {"", "", {"f({\"a\": 1})"}}},
      {"llama3_json",
       "none",
       R"(<|python_tag|>{"name": "f", "parameters": {}}; {"name": "get_weather", "parameters": {"city": "P"}})",
       {"", "", {"f({})", "get_weather({\"city\": \"P\"})"}}},
      {"llama3_json",
       "none",
       R"({"name": "Bob", "parameters": {"age": 3}})",  // no tool
       {R"({"name": "Bob", "parameters": {"age": 3}})", "", {}}},
      {"llama3_json", "none", R"({"name": "f"} is JSON)", {R"({"name": "f"} is JSON)", "", {}}},
      {"llama3_json",
       "none",
       R"(In JSON: {"name": "f", "parameters": {}})",
       {R"(In JSON: {"name": "f", "parameters": {}})", "", {}}},
      // Mistral.
      {"mistral",
       "none",
       R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": [1, {}]}}, {"name": "g", "arguments": {}}])",
       {"", "", {"f({\"a\": [1, {}]})", "g({})"}}},
      {"mistral",
       "none",
       R"(Well.[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{})",
       {"Well.", "", {"f({\"a\": 1})", "g({})"}}},
      // DeepSeek.
      {"deepseek_v3",
       "none",
       "I "
       "look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": "
       "1}\n```"
       "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"
       "\"city\": "
       "\"P\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       {"I look.", "", {"f({\"a\": 1})", "get_weather({\"city\": \"P\"})"}}},
      {"deepseek_v31",
       "deepseek_v3",
       "Hm.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": "
       "1}<｜tool▁call▁end｜>"
       "<｜tool▁calls▁end｜>",
       {"", "Hm.", {"f({\"a\": 1})"}},
       true},
      {"deepseek_v32",
       "none",
       "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" "
       "string=\"true\">12"
       "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"a\" string=\"false\">[1, "
       "2]</｜DSML｜parameter>\n"
       "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
       {"", "", {"f({\"s\": \"12\", \"a\": [1, 2]})"}}},
      // Granite.
      {"granite",
       "none",
       R"(<|tool_call|>[{"name": "f", "arguments": {"a": 1}}])",
       {"", "", {"f({\"a\": 1})"}}},
      // Kimi.
      {"kimi_k2",
       "none",
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"
       "\"a\": "
       "1}<|tool_call_end|><|tool_calls_section_end|>",
       {"", "", {"f({\"a\": 1})"}}},
      // Other markers around JSON.
      {"apriel",
       "none",
       R"(<tool_calls>[{"name": "f", "arguments": {"a": 1}, "id": "x"}, {"name": "g", "arguments": {}}]</tool_calls>)",
       {"", "", {"f({\"a\": 1})", "g({})"}}},
      {"apertus",
       "apertus",
       R"(<|inner_prefix|>A<|inner_suffix|>B<|tools_prefix|>[{"f": {"a": 1}}, {"g": {}}]<|tools_suffix|>)",
       {"B", "A", {"f({\"a\": 1})", "g({})"}}},
      {"cohere",
       "cohere",
       "<|START_THINKING|>A<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", "
       "\"tool_name\": \"f\", \"parameters\": {\"a\": 1}}\n]<|END_ACTION|>",
       {"", "A", {"f({\"a\": 1})"}}},
      {"cohere",
       "cohere",
       "A<|END_THINKING|><|START_RESPONSE|>B<|END_RESPONSE|>",
       {"B", "A", {}},
       true},
      {"command_r",
       "none",
       "I look.\nAction:\n```json\n[\n    {\n        \"tool_name\": \"f\",\n        "
       "\"parameters\": "
       "{\"a\": 1}\n    }\n]\n```",
       {"I look.", "", {"f({\"a\": 1})"}}},
      {"firefunction",
       "none",
       R"( functools[{"name": "f", "arguments": {"a": 1}}])",
       {"", "", {"f({\"a\": 1})"}}},
      {"functionary_v31",
       "none",
       R"(<function=f>{"a": 1}</function><function=g>{}</function>)",
       {"", "", {"f({\"a\": 1})", "g({})"}}},
      {"functionary_v31",
       "none",
       "A <function=NAME> element opens {a call}.",
       {"A <function=NAME> element opens {a call}.", "", {}}},
  };
}

}  // namespace millrace
