#include "text/tools/output_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/strings.h"
#include "text/tools/output_format.h"

namespace millrace {
namespace {

// An answer put together from its deltas.
struct Whole {
  std::string content;
  std::string reasoning;
  std::vector<std::string> calls;  // "name(arguments)"

  bool operator==(const Whole&) const = default;
};

void PrintTo(const Whole& whole, std::ostream* out) {
  *out << "content [" << whole.content << "] reasoning [" << whole.reasoning << "] calls";
  for (const std::string& call : whole.calls) *out << " [" << call << "]";
}

class Joiner {
 public:
  void Add(const OutputDelta& delta) {
    whole_.content += delta.content;
    whole_.reasoning += delta.reasoning;
    for (const ToolCallDelta& call : delta.calls) {
      const auto index = static_cast<size_t>(call.index);
      if (index == whole_.calls.size()) {
        EXPECT_NE(call.name, "");
        whole_.calls.push_back(call.name + "(");
      } else {
        ASSERT_EQ(index + 1, whole_.calls.size());
        EXPECT_EQ(call.name, "");
      }
      whole_.calls.back() += call.arguments;
    }
  }
  Whole Take() {
    for (std::string& call : whole_.calls) call += ")";
    return std::move(whole_);
  }

 private:
  Whole whole_;
};

const std::vector<ToolSignature> kTools = {
    {"f", R"({"type":"object","properties":{"a":{"type":"integer"},"s":{"type":"string"}}})"},
    {"get_weather", R"({"type":"object","properties":{"city":{"type":"string"}}})"},
    {"look", R"({"type":"object","properties":{"for":{"type":["string","null"]}}})"},
    {"typed",
     R"({"properties":{"opt":{"anyOf":[{"type":"string"},{"type":"null"}]},)"
     R"("ref":{"$ref":"#/$defs/Zip"},"en":{"enum":["1","2"]},"all":{"allOf":[{"type":"string"}]},)"
     R"("one":{"oneOf":[{"type":"string"},{"type":"array"}]},"cst":{"const":"7"},)"
     R"("pat":{"pattern":"^[0-9]+$"},"n":{"$ref":"#/$defs/Count"},"b":{"type":"boolean"},)"
     R"("list":{"type":"array"},"two":{"type":["string","integer"]},"mixed":{"enum":["2",2,null]}},)"
     R"("$defs":{"Zip":{"type":"string"},"Count":{"anyOf":[{"type":"integer"},{"type":"null"}]}}})"}};

struct Case {
  std::string tools;
  std::string reasoning;
  std::string text;
  Whole whole;
  bool inside = false;  // the prompt has opened the reasoning
};

std::unique_ptr<OutputParser> MakeParser(const OutputFormat& format, bool inside) {
  return format.MakeParser(
      {.tools = true, .reasoning = true, .signatures = kTools, .inside_reasoning = inside});
}

Whole Parse(const OutputFormat& format, bool inside, const std::vector<std::string>& pieces,
            AnswerEnd end = AnswerEnd::kWhole) {
  const auto parser = MakeParser(format, inside);
  Joiner joiner;
  for (const std::string& piece : pieces) {
    OutputDelta delta;
    parser->Add(piece, &delta);
    joiner.Add(delta);
  }
  OutputDelta last;
  parser->Finish(end, &last);
  joiner.Add(last);
  return joiner.Take();
}

const std::vector<Case>& Cases() {
  static const auto& cases = *new std::vector<Case>{
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
      // Elements.
      {"qwen3_coder",
       "none",
       "I call.\n<tool_call>\n<function=f>\n<parameter=a>\n7\n</parameter>\n<parameter=s>\nline "
       "1\nline 2 \"quoted\"\n</parameter>\n</function>\n</tool_call>",
       {"I call.", "", {R"(f({"a": 7, "s": "line 1\nline 2 \"quoted\""}))"}}},
      {"qwen3_coder",
       "none",
       "<tool_call><function=f></function></tool_call><tool_call><function=g>"
       "</function></tool_call>",
       {"", "", {"f({})", "g({})"}}},
      {"qwen3_coder",
       "none",
       "<function=look><parameter=for>null</parameter></function>"
       "<function=look><parameter=for>\"a\"</parameter></function>"
       "<function=look><parameter=for>7</parameter></function>",
       {"", "", {R"(look({"for": null}))", R"(look({"for": "a"}))", R"(look({"for": "7"}))"}}},
      {"qwen3_coder",
       "none",
       "<function=></function> x",  // no call has no name
       {"<function=></function> x", "", {}}},
      {"glm45", "none", "<tool_call>\nf\n</tool_call>", {"", "", {"f({})"}}},
      {"glm45", "none", "a<tool_call></tool_call>", {"a<tool_call></tool_call>", "", {}}},
      {"glm45",
       "none",
       "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n</tool_call>"
       "<tool_call>f<arg_key>a</arg_key><arg_value>12</arg_value></tool_call>",
       {"", "", {"get_weather({\"city\": \"12\"})", "f({\"a\": 12})"}}},
      {"minimax_m2",
       "none",
       "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">nothing</parameter>\n"
       "</invoke>\n</minimax:tool_call>",
       {"", "", {"f({\"a\": \"nothing\"})"}}},
      // Types that the schema tells in other ways than by `type`.
      {"qwen3_coder",
       "none",
       "<function=typed><parameter=opt>12345</parameter><parameter=ref>04224</parameter>"
       "<parameter=en>1</parameter><parameter=all>99</parameter><parameter=one>42</parameter>"
       "<parameter=cst>7</parameter><parameter=pat>123</parameter></function>",
       {"",
        "",
        {R"(typed({"opt": "12345", "ref": "04224", "en": "1", "all": "99", "one": "42", )"
         R"("cst": "7", "pat": "123"}))"}}},
      {"qwen3_coder",
       "none",
       "<function=typed><parameter=opt>null</parameter><parameter=one>[\"a\"]</parameter>"
       "<parameter=n>5</parameter><parameter=b>True</parameter>"
       "<parameter=list>['a', {'b': None}]</parameter><parameter=two>5</parameter>"
       "<parameter=mixed>2</parameter></function>",
       {"",
        "",
        {R"(typed({"opt": null, "one": ["a"], "n": 5, "b": true, "list": ["a", {"b": null}], )"
         R"("two": 5, "mixed": "2"}))"}}},
      {"qwen3_coder",
       "none",  // what a type does not allow stays, as a string
       "<function=typed><parameter=n>many</parameter><parameter=b>yes</parameter>"
       "<parameter=two>5 apples</parameter><parameter=opt>nullable</parameter>"
       "<parameter=one>[see above]</parameter></function>",
       {"",
        "",
        {R"(typed({"n": "many", "b": "yes", "two": "5 apples", "opt": "nullable", )"
         R"("one": "[see above]"}))"}}},
      // A closing marker is missing.
      {"qwen3_coder",
       "none",
       "<tool_call>\n<function=f>\n<parameter=s>\nabc\n</function>\n</tool_call>",
       {"", "", {R"(f({"s": "abc"}))"}}},
      {"qwen3_coder",
       "none",
       "<tool_call>\n<function=f>\n<parameter=s>\nabc\n<parameter=a>\n5\n</parameter>\n"
       "</function>\n</tool_call>\nDone.",
       {"Done.", "", {R"(f({"s": "abc", "a": 5}))"}}},
      {"qwen3_coder",
       "none",
       "<tool_call>\n<function=f>\n<parameter=s>\nabc\n</parameter>\n</tool_call>\nDone.",
       {"Done.", "", {R"(f({"s": "abc"}))"}}},
      {"qwen3_coder",
       "none",
       "<tool_call>\n<function=f>\n<parameter=s>\nabc\n</tool_call>\nDone.",
       {"Done.", "", {R"(f({"s": "abc"}))"}}},
      {"qwen3_coder",
       "none",
       "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<function=look>\n"
       "<parameter=for>\nx\n</parameter>",
       {"", "", {R"(f({"a": 1}))", R"(look({"for": "x"}))"}}},
      {"qwen3_coder", "none", "<function=f>\n<parameter=s>\nabc", {"", "", {R"(f({"s": "abc"}))"}}},
      {"qwen3_coder",
       "none",
       "<tool_call>\n<function=f\n<parameter=a>1</parameter></function></tool_call>",
       {"", "", {R"(f({"a": 1}))"}}},
      {"qwen3_coder",
       "none",
       "<tool_call>\n<function=f\n</tool_call>\nHello.",
       {"<tool_call>\n<function=f\n</tool_call>\nHello.", "", {}}},
      {"qwen3_coder",
       "none",  // the key of the second argument has no end
       "<function=f><parameter=a>1</parameter><parameter=\nx</parameter></function>!",
       {"<parameter=\nx</parameter>!", "", {R"(f({"a": 1}))"}}},
      {"glm45",
       "none",
       "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>abc\n<arg_key>a</arg_key>\n"
       "<arg_value>7</tool_call>",
       {"", "", {R"(f({"s": "abc", "a": 7}))"}}},
      {"minimax_m2",
       "none",
       "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">abc\n</invoke>\n"
       "</minimax:tool_call>",
       {"", "", {R"(f({"s": "abc"}))"}}},
      {"deepseek_v32",
       "none",
       "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" "
       "string=\"true\">abc\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
       {"", "", {R"(f({"s": "abc"}))"}}},
      // Markers within an argument belong to it.
      {"qwen3_coder",
       "none",
       "<tool_call>\n<function=f>\n<parameter=s>\nIt ends with </parameter>, or </function> as in\n"
       "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n"
       "and <parameter=zzz> is none.\n</parameter>\n</function>\n</tool_call>",
       {"",
        "",
        {R"(f({"s": "It ends with </parameter>, or </function> as in\n<tool_call>\n<function=f>\n)"
         R"(<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\nand <parameter=zzz> is )"
         R"(none."}))"}}},
      // Prose about the form stays as it is.
      {"qwen3_coder",
       "none",
       "The markup is <tool_call>, then XML.\n\n<tool_call>\n\n</tool_call>\n",
       {"The markup is <tool_call>, then XML.\n\n<tool_call>\n\n</tool_call>\n", "", {}}},
      {"qwen3_coder",
       "none",
       "A <function=NAME> element opens a call, <function=f> calls f.",
       {"A <function=NAME> element opens a call, <function=f> calls f.", "", {}}},
      {"qwen3_coder",
       "none",
       "Write <tool_call> \n and then:\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
       {"Write <tool_call> \n and then:", "", {"f({})"}}},
      {"glm45",
       "none",
       "In GLM <tool_call> tags hold calls, and <arg_key> is a key.",
       {"In GLM <tool_call> tags hold calls, and <arg_key> is a key.", "", {}}},
      {"hermes",
       "none",
       "Like this:\n\n<tool_call>\nyour JSON here\n</tool_call>\n\nDone. <tool_call></tool_call>",
       {"Like this:\n\n<tool_call>\nyour JSON here\n</tool_call>\n\nDone. <tool_call></tool_call>",
        "",
        {}}},
      {"hermes",
       "none",  // the marker after a call is prose, too
       "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\nA  </tool_call> ends it.",
       {"A  </tool_call> ends it.", "", {"f({})"}}},
      {"mistral",
       "none",
       "First [TOOL_CALLS] comes,\n then [ARGS].",
       {"First [TOOL_CALLS] comes,\n then [ARGS].", "", {}}},
      {"deepseek_v31",
       "none",
       "A <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁call▁end｜> B",
       {"A <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁call▁end｜> B", "", {}}},
      // Seed-OSS.
      {"seed_oss",
       "seed_oss",
       "<seed:think>Hm.</seed:think>\n<seed:tool_call>\n<function=f>\n<parameter=s>a\nb</"
       "parameter>\n"
       "<parameter=a>2</parameter>\n</function>\n</seed:tool_call>",
       {"", "Hm.", {R"(f({"s": "a\nb", "a": 2}))"}}},
      {"deepseek_v4",
       "none",
       "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
       "string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
       {"", "", {R"(f({"a": 3}))"}}},
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
  return cases;
}

OutputFormat FormatOf(const Case& one) {
  return *OutputFormat::Choose("", one.tools, one.reasoning);
}

TEST(OutputParserTest, SplitsAnswers) {
  for (const Case& one : Cases()) {
    EXPECT_EQ(Parse(FormatOf(one), one.inside, {one.text}), one.whole) << one.tools << one.text;
  }
}

// Cuts a text at random places; pieces may be empty.
std::vector<std::string> Split(const std::string& text, std::mt19937& random) {
  std::vector<std::string> pieces(1);
  const unsigned every = 1 + random() % 20;
  for (const char c : text) {
    while (random() % every == 0 && random() % 4 != 0) pieces.emplace_back();
    pieces.back() += c;
  }
  return pieces;
}

// Mixes pieces of the cases' texts, so that markers stand where no model puts them.
std::string Scrambled(std::mt19937& random) {
  std::string text;
  for (int i = 0; i < 4; ++i) {
    const std::string& from = Cases()[random() % Cases().size()].text;
    const size_t begin = random() % from.size();
    text += from.substr(begin, random() % (from.size() - begin + 1));
  }
  return text;
}

TEST(OutputParserTest, HowTheTextIsSplitChangesNothing) {
  std::mt19937 random(1);
  for (int round = 0; round < 4000; ++round) {
    const Case& one = Cases()[round % Cases().size()];
    const bool scrambled = round % 3 == 0;
    const std::string text = scrambled ? Scrambled(random) : one.text;
    const OutputFormat format = FormatOf(one);
    const Whole whole = Parse(format, one.inside, {text});
    if (!scrambled) {
      ASSERT_EQ(whole, one.whole);
    }
    ASSERT_EQ(Parse(format, one.inside, Split(text, random)), whole) << one.tools << ": " << text;
  }
}

TEST(OutputParserTest, LosesNoTextThatIsNoCall) {
  std::mt19937 random(2);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 40; ++i) text += "<>|[{}]\"\\tool_callTHINK/ä\n: ,"[random() % 30];
    const Whole whole = Parse(*OutputFormat::Choose("", "hermes", "qwen3"), false, {text});
    ASSERT_EQ(whole.content, text);
  }
}

TEST(OutputParserTest, ArgumentsInLiteralsAreJsonWhateverIsWritten) {
  std::mt19937 random(3);
  const std::pair<const char*, const char*> forms[] = {
      {"lfm2", "<|tool_call_start|>[f("},
      {"gemma4", "<|tool_call>call:f{"},
      {"functiongemma", "<start_function_call>call:g{"}};
  const std::string pieces[] = {
      "a",    "=",  "'",  "\"",     "\\",       ",",  "[",      "]",        "(",     ")",
      "{",    "}",  ":",  " ",      "\n",       "1",  "x4",     "u00",      "ud83d", "None",
      "True", "r'", "-.", "<|\"|>", "<escape>", "<|", "\"\"\"", "\xc3\xa4", "_0"};
  for (int round = 0; round < 6000; ++round) {
    const auto& [name, begin] = forms[round % 3];
    const OutputFormat format = *OutputFormat::Choose("", name, "none");
    std::string text = begin;
    for (unsigned i = random() % 30; i > 0; --i) text += pieces[random() % std::size(pieces)];
    const Whole whole = Parse(format, false, {text});
    ASSERT_FALSE(whole.calls.empty()) << text;
    const std::string& call = whole.calls[0];
    ASSERT_TRUE(nlohmann::json::accept(call.substr(2, call.size() - 3))) << text << "\n" << call;
    ASSERT_EQ(Parse(format, false, Split(text, random)), whole) << text;
  }
}

TEST(OutputParserTest, StringsInLiteralsComeAsTheyAreWritten) {
  for (const auto& [name, begin] : {std::pair{"lfm2", "<|tool_call_start|>[f(s='"},
                                    {"gemma4", "<|tool_call>call:f{s:<|\"|>"}}) {
    const OutputFormat format = *OutputFormat::Choose("", name, "none");
    const auto parser = MakeParser(format, false);
    OutputDelta delta;
    parser->Add(begin, &delta);
    for (int i = 0; i < 10; ++i) {
      OutputDelta piece;
      parser->Add("line \"a\"\n", &piece);
      ASSERT_EQ(piece.calls.size(), 1U) << name;
    }
  }
}

TEST(OutputParserTest, KeepsTheModelsOwnIds) {
  const auto ids = [](std::string_view tools, std::string_view text) {
    const auto format = *OutputFormat::Choose("", tools, "none");
    OutputDelta delta;
    MakeParser(format, false)->Add(text, &delta);
    std::vector<std::string> found;
    for (const ToolCallDelta& call : delta.calls) found.push_back(call.id);
    return found;
  };
  const std::string call = "<|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{}";
  EXPECT_THAT(ids("kimi_k2", "<|tool_calls_section_begin|>" + call + "<|tool_call_end|>" + call),
              testing::ElementsAre("functions.f:3", ""));  // an id is given once
  EXPECT_THAT(ids("mistral", "[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{}[TOOL_CALLS]g[ARGS]{}"),
              testing::ElementsAre("123456789", ""));
  EXPECT_THAT(ids("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"),
              testing::ElementsAre(""));
}

TEST(OutputParserTest, TellsWhereReasoningEnds) {
  const auto format = *OutputFormat::Choose("", "hermes", "qwen3");
  const auto parser = MakeParser(format, false);
  OutputDelta delta;
  EXPECT_FALSE(parser->in_reasoning());
  parser->Add("<think>", &delta);
  EXPECT_TRUE(parser->in_reasoning());
  parser->Add("a</think>", &delta);
  EXPECT_FALSE(parser->in_reasoning());
  EXPECT_EQ(parser->complete_calls(), 0);
  parser->Add("<tool_call>{\"name\": \"f\", \"arguments\": {}}", &delta);
  EXPECT_EQ(parser->complete_calls(), 1);
}

TEST(OutputParserTest, ACutAnswerLeavesItsCallOpen) {
  const auto format = *OutputFormat::Choose("", "qwen3_coder", "none");
  const auto cut = [&](const std::string& text) {
    return Parse(format, false, {text}, AnswerEnd::kCut).calls;
  };
  EXPECT_THAT(cut("<function=f><parameter=s>ab"), testing::ElementsAre(R"(f({"s": "ab))"));
  EXPECT_THAT(cut("<function=f><parameter=a>12"), testing::ElementsAre(R"(f({"a": 12))"));
  EXPECT_THAT(cut("<function=f><parameter=a>12</parameter>"),
              testing::ElementsAre(R"(f({"a": 12))"));
  EXPECT_THAT(cut("<function=f><parameter=a>12</parameter></function>"),
              testing::ElementsAre(R"(f({"a": 12}))"));
}

TEST(OutputParserTest, LongStringsComeAsTheyAreWritten) {
  for (const char* key : {"s", "any", "opt"}) {
    const auto format = *OutputFormat::Choose("", "qwen3_coder", "none");
    const auto parser = format.MakeParser(
        {.tools = true,
         .signatures = {{"f", R"({"properties":{"s":{"type":"string"},"any":{},)"
                              R"("opt":{"anyOf":[{"type":"string"},{"type":"integer"}]}}})"}}});
    OutputDelta delta;
    parser->Add("<function=f>\n<parameter=" + std::string(key) + ">\nline", &delta);
    for (int i = 0; i < 10; ++i) {
      OutputDelta piece;
      parser->Add(" \"a\"\n", &piece);
      ASSERT_EQ(piece.calls.size(), 1U) << key;
    }
  }
}

TEST(OutputParserTest, DeepArgumentsEndNoProgram) {
  const std::string deep =
      "<tool_call>{\"name\": \"f\", \"arguments\": " + std::string(100000, '[');
  const Whole whole = Parse(*OutputFormat::Choose("", "hermes", "none"), false, {deep});
  EXPECT_EQ(whole.calls.size(), 1U);
}

TEST(OutputParserTest, ACallHasTheModelsOwnIdIfTheModelWritesOne) {
  const auto ids = [](std::string_view name, std::string_view answer) {
    const auto format = OutputFormat::Choose("", name, "none");
    auto parser = format->MakeParser({.tools = true, .signatures = kTools});
    OutputDelta delta;
    parser->Add(answer, &delta);
    parser->Finish(AnswerEnd::kWhole, &delta);
    std::vector<std::string> ids;
    for (const ToolCallDelta& call : delta.calls) {
      if (!call.name.empty()) ids.push_back(call.id);
    }
    return ids;
  };
  EXPECT_THAT(ids("kimi_k2",
                  "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3"
                  "<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_call_begin|>f"
                  "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"),
              testing::ElementsAre("functions.f:3", ""));
  EXPECT_THAT(ids("deepseek_v31",
                  "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}"
                  "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
              testing::ElementsAre(""));
}

}  // namespace
}  // namespace millrace
