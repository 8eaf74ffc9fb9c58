#include "text/tools/tool_format.h"

#include <utility>

#include "base/strings.h"
#include "text/tools/recipient_parser.h"

namespace millrace {
namespace {

ToolFormat Marked(std::string name, MarkedFormat format, std::string begins,
                  std::string arguments) {
  return {.name = std::move(name),
          .marked = std::move(format),
          .xml = {},
          .call_begins = std::move(begins),
          .arguments_begin = std::move(arguments)};
}

ToolFormat Xml(std::string name, XmlFormat format, std::string begins, std::string arguments) {
  return {.name = std::move(name),
          .kind = ToolFormat::Kind::kXml,
          .marked = {},
          .xml = std::move(format),
          .call_begins = std::move(begins),
          .arguments_begin = std::move(arguments)};
}

ToolFormat Hermes() {
  return Marked("hermes", {.open = {"<tool_call>"}, .close = {"</tool_call>"}},
                "<tool_call>\n{\"name\": \"", "\", \"arguments\": ");
}

ToolFormat Llama3() {
  return Marked("llama3_json", {.open = {"<|python_tag|>"}, .bare = true}, "{\"name\": \"",
                "\", \"parameters\": ");
}

ToolFormat Mistral(bool header) {
  MarkedFormat format{.open = {"[TOOL_CALLS]"},
                      .after_name = {"[CALL_ID]", "[ARGS]"},
                      .header = true,
                      .before_id = "[CALL_ID]",
                      .after_id = "[ARGS]"};
  return header ? Marked("mistral", std::move(format), "[TOOL_CALLS]", "[ARGS]")
                : Marked("mistral", std::move(format), "[TOOL_CALLS] [{\"name\": \"",
                         "\", \"arguments\": ");
}

ToolFormat Granite() {
  return Marked(
      "granite",
      {.open = {"<|tool_call|>", "<tool_call>"}, .close = {"<|/tool_call|>", "</tool_call>"}},
      "<|tool_call|>[{\"name\": \"", "\", \"arguments\": ");
}

// V3 writes a kind before the name and fences the arguments, V3.1 neither.
ToolFormat DeepSeek(bool fenced) {
  MarkedFormat format{.open = {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"},
                      .close = {"<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"},
                      .before_name = {"function<｜tool▁sep｜>"},
                      .after_name = {"<｜tool▁sep｜>", "\n```"},
                      .header = true,
                      .separators = ",;[]`"};
  const std::string begins = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>";
  return fenced ? Marked("deepseek_v3", std::move(format), begins + "function<｜tool▁sep｜>",
                         "\n```json\n")
                : Marked("deepseek_v31", std::move(format), begins, "<｜tool▁sep｜>");
}

// V4 names the section tool_calls.
ToolFormat DeepSeekElements(bool v4) {
  const std::string section = v4 ? "<｜DSML｜tool_calls>" : "<｜DSML｜function_calls>";
  return Xml(v4 ? "deepseek_v4" : "deepseek_v32",
             {.name_open = "<｜DSML｜invoke name=\"",
              .name_close = "\">",
              .key_open = "<｜DSML｜parameter name=\"",
              .key_close = "\">",
              .value_open = "",
              .value_close = "</｜DSML｜parameter>",
              .call_close = "</｜DSML｜invoke>",
              .dropped = {section, "</" + section.substr(1)}},
             section + "\n<｜DSML｜invoke name=\"", "\">\n");
}

ToolFormat Kimi() {
  ToolFormat format = Marked("kimi_k2",
                             {.open = {"<|tool_calls_section_begin|>", "<|tool_call_begin|>"},
                              .close = {"<|tool_call_end|>", "<|tool_calls_section_end|>"},
                              .before_name = {"functions."},
                              .after_name = {"<|tool_call_argument_begin|>", ":"},
                              .header = true,
                              .after_id = "<|tool_call_argument_begin|>"},
                             "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
                             "<|tool_call_argument_begin|>");
  format.numbered = true;
  return format;
}

// Seed-OSS has the same elements in a section of another name.
ToolFormat FunctionElements(std::string name, const std::string& section) {
  return Xml(std::move(name),
             {.name_open = "<function=",
              .name_close = ">",
              .key_open = "<parameter=",
              .key_close = ">",
              .value_open = "",
              .value_close = "</parameter>",
              .call_close = "</function>",
              .dropped = {StrCat("<", section, ">"), StrCat("</", section, ">")}},
             StrCat("<", section, ">\n<function="), ">\n");
}

ToolFormat Qwen3Coder() { return FunctionElements("qwen3_coder", "tool_call"); }
ToolFormat SeedOss() { return FunctionElements("seed_oss", "seed:tool_call"); }

// From 4.7 on no line break follows the name.
ToolFormat Glm(bool line_break) {
  return Xml(line_break ? "glm45" : "glm47",
             {.name_open = "<tool_call>",
              .name_close = "",
              .key_open = "<arg_key>",
              .key_close = "</arg_key>",
              .value_open = "<arg_value>",
              .value_close = "</arg_value>",
              .call_close = "</tool_call>",
              .dropped = {}},
             "<tool_call>", line_break ? "\n" : "");
}

ToolFormat MiniMax() {
  return Xml("minimax_m2",
             {.name_open = "<invoke name=\"",
              .name_close = "\">",
              .key_open = "<parameter name=\"",
              .key_close = "\">",
              .value_open = "",
              .value_close = "</parameter>",
              .call_close = "</invoke>",
              .dropped = {"<minimax:tool_call>", "</minimax:tool_call>"}},
             "<minimax:tool_call>\n<invoke name=\"", "\">\n");
}

ToolFormat Apriel() {
  return Marked("apriel", {.open = {"<tool_calls>"}, .close = {"</tool_calls>"}},
                "<tool_calls>[{\"name\": \"", "\", \"arguments\": ");
}

ToolFormat Apertus() {
  return Marked("apertus",
                {.open = {"<|tools_prefix|>"}, .close = {"<|tools_suffix|>"}, .keyed = true},
                "<|tools_prefix|>[{\"", "\": ");
}

ToolFormat Cohere() {
  return Marked("cohere", {.open = {"<|START_ACTION|>"}, .close = {"<|END_ACTION|>"}},
                "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"",
                "\", \"parameters\": ");
}

ToolFormat CommandR() {
  return Marked("command_r", {.open = {"Action:\n```json"}, .close = {}, .separators = ",;[]`"},
                "Action:\n```json\n[\n    {\n        \"tool_name\": \"",
                "\",\n        \"parameters\": ");
}

ToolFormat Functionary() {
  return Marked(
      "functionary_v31",
      {.open = {"<function="}, .close = {"</function>"}, .after_name = {">"}, .header = true},
      "<function=", ">");
}

ToolFormat FireFunction() {
  return Marked("firefunction", {.open = {"functools["}}, "functools[{\"name\": \"",
                "\", \"arguments\": ");
}

// A list of calls as Python writes them.
ToolFormat Python(std::string name, std::vector<std::string> open, std::vector<std::string> close,
                  bool bare, const std::string& begins) {
  return Marked(std::move(name),
                {.open = std::move(open),
                 .close = std::move(close),
                 .bare = bare,
                 .header = true,
                 .arguments = ArgumentForm::kPython},
                begins, "");
}

ToolFormat Pythonic() {
  return Python("pythonic", {"<|python_tag|>", "<|python_start|>"}, {"<|python_end|>"},
                /*bare=*/true, "[");
}

// LFM2.5 writes lists without the markers, too.
ToolFormat Lfm2() {
  return Python("lfm2", {"<|tool_call_start|>"}, {"<|tool_call_end|>"}, /*bare=*/true,
                "<|tool_call_start|>[");
}

// A call on each line.
ToolFormat Olmo3() {
  return Python("olmo3", {"<function_calls>"}, {"</function_calls>"}, /*bare=*/false,
                "<function_calls>\n");
}

ToolFormat Gemma(std::string name, std::string open, std::string close, ArgumentForm arguments) {
  const std::string begins = open + "call:";
  return Marked(std::move(name),
                {.open = {std::move(open)},
                 .close = {std::move(close)},
                 .before_name = {"call:"},
                 .header = true,
                 .arguments = arguments},
                begins, "");
}

ToolFormat Gemma4() {
  return Gemma("gemma4", "<|tool_call>", "<tool_call|>", ArgumentForm::kGemma);
}

ToolFormat FunctionGemma() {
  return Gemma("functiongemma", "<start_function_call>", "<end_function_call>",
               ArgumentForm::kFunctionGemma);
}

ToolFormat Functionary32() {
  ToolFormat format;
  format.name = "functionary_v32";
  format.kind = ToolFormat::Kind::kRecipients;
  format.marked.open = {std::string(kRecipientOpen)};
  format.arguments_begin = "\n";
  return format;
}

// Prompts as vLLM has them ask for a word before the list.
ToolFormat Phi4Mini() {
  return Marked("phi4_mini_json",
                {.open = {"<|tool_call|>", "functools["}, .close = {"<|/tool_call|>"}},
                "<|tool_call|>[{\"name\": \"", "\", \"arguments\": ");
}

ToolFormat MiroThinker() {
  return Marked("mirothinker",
                {.open = {"<use_mcp_tool>", "<server_name>"},
                 .close = {"</arguments>", "</use_mcp_tool>"},
                 .before_name = {"<tool_name>"},
                 .after_name = {"</tool_name>"},
                 .header = true},
                "<use_mcp_tool>\n<server_name>generic-extras</server_name>\n<tool_name>",
                "</tool_name>\n<arguments>\n");
}

ToolFormat Harmony() {
  ToolFormat format;
  format.name = "openai";
  format.kind = ToolFormat::Kind::kHarmony;
  format.call_begins = "<|channel|>commentary to=functions.";
  format.arguments_begin = " <|constrain|>json<|message|>";
  return format;
}

// A text by which a template shows which format its model was trained on. The first that is found
// decides, so that the more special ones stand first.
struct ToolSign {
  std::string_view text;
  ToolFormat (*make)();
};
constexpr ToolSign kToolSigns[] = {
    {"<|channel|>", Harmony},
    {"[ARGS]", [] { return Mistral(true); }},
    {"[TOOL_CALLS]", [] { return Mistral(false); }},
    {"｜DSML｜tool_calls>", [] { return DeepSeekElements(true); }},
    {"dsml_token + 'tool_calls>", [] { return DeepSeekElements(true); }},
    {"｜DSML｜", [] { return DeepSeekElements(false); }},
    {"function<｜tool▁sep｜>", [] { return DeepSeek(true); }},
    {"'function' + '<｜tool▁sep｜>'", [] { return DeepSeek(true); }},
    {"tool['type'] + '<｜tool▁sep｜>'", [] { return DeepSeek(true); }},
    {"<｜tool▁calls▁begin｜>", [] { return DeepSeek(false); }},
    {"<|tool_calls_section_begin|>", Kimi},
    {"<|START_ACTION|>", Cohere},
    {"Action:\\n```json", CommandR},
    {"<|tools_prefix|>", Apertus},
    {"<|tool_call_start|>", Lfm2},
    {"<|tool_list_start|>", Lfm2},
    {"List of tools: [", Lfm2},
    {"<|tool_call>", Gemma4},
    {"<start_function_call>", FunctionGemma},
    {"<use_mcp_tool>", MiroThinker},
    {"<function_calls>", Olmo3},
    {">>>all\\n", Functionary32},
    {">>>${recipient}", Functionary32},
    {"(params_name1=", Pythonic},
    {"<|python_start|>", Pythonic},
    {"<tool_calls>[", Apriel},
    {"functools[", FireFunction},
    {"<seed:tool_call>", SeedOss},
    {"<parameter=", Qwen3Coder},  // "<function=" is Functionary's, too, before an object
    {"<function=", Functionary},
    {"<minimax:tool_call>", MiniMax},
    {"<arg_key>", [] { return Glm(true); }},
    {"<|tool|>", Phi4Mini},
    {"<|tool_call|>", Granite},
    {"<tool_call>", Hermes},
    {"<|python_tag|>", Llama3},
    {"<|start_header_id|>", Llama3},
};

// vLLM's names, with those that it has for the same format.
struct ToolName {
  std::string_view name;
  ToolFormat (*make)();
};
constexpr ToolName kToolNames[] = {
    {"hermes", Hermes},
    {"llama3_json", Llama3},
    {"llama4_json", Llama3},
    {"mistral", [] { return Mistral(true); }},
    {"openai", Harmony},
    {"deepseek_v3", [] { return DeepSeek(true); }},
    {"deepseek_v31", [] { return DeepSeek(false); }},
    {"deepseek_v32", [] { return DeepSeekElements(false); }},
    {"deepseek_v4", [] { return DeepSeekElements(true); }},
    {"granite", Granite},
    {"kimi_k2", Kimi},
    {"qwen3_coder", Qwen3Coder},
    {"qwen3_xml", Qwen3Coder},
    {"step3p5", Qwen3Coder},
    {"seed_oss", SeedOss},
    {"glm45", [] { return Glm(true); }},
    {"glm47", [] { return Glm(false); }},
    {"minimax_m2", MiniMax},
    {"apertus", Apertus},
    {"apriel", Apriel},
    {"cohere", Cohere},
    {"command_r", CommandR},
    {"firefunction", FireFunction},
    {"functionary_v31", Functionary},
    {"functionary_v32", Functionary32},
    {"pythonic", Pythonic},
    {"llama4_pythonic", Pythonic},
    {"lfm2", Lfm2},
    {"olmo3", Olmo3},
    {"gemma4", Gemma4},
    {"functiongemma", FunctionGemma},
    {"mirothinker", MiroThinker},
    {"phi4_mini_json", Phi4Mini},
};

}  // namespace

std::vector<std::string> ToolFormat::Opens() const {
  if (kind != Kind::kXml) return marked.open;
  std::vector<std::string> opens = {xml.name_open};
  for (const std::string& text : xml.dropped) {
    if (!text.starts_with("</")) opens.push_back(text);
  }
  return opens;
}

std::string ToolFormat::AfterName(size_t calls_before) const {
  return numbered ? StrCat(":", calls_before, arguments_begin) : arguments_begin;
}

std::optional<ToolFormat> ToolFormatNamed(std::string_view name) {
  for (const ToolName& row : kToolNames) {
    if (row.name == name) return row.make();
  }
  return std::nullopt;
}

std::vector<std::string> ToolFormatNames() {
  std::vector<std::string> names;
  for (const ToolName& row : kToolNames) names.emplace_back(row.name);
  return names;
}

std::optional<ToolFormat> ToolFormatShown(std::string_view text) {
  for (const ToolSign& sign : kToolSigns) {
    if (text.find(sign.text) != text.npos) return sign.make();
  }
  return std::nullopt;
}

std::optional<ToolFormat> DeriveToolFormat(std::string_view with_text, std::string_view text,
                                           std::string_view with_call, std::string_view name) {
  const size_t begin = with_text.rfind(text);
  if (begin == with_text.npos || with_call.size() < begin) return std::nullopt;
  // Up to the answer the two are the same.
  size_t same = 0;
  while (same < begin && with_text[same] == with_call[same]) ++same;
  const std::string_view call = with_call.substr(same);
  const size_t object = call.find("{\"name\": \"");
  if (object == call.npos || !call.substr(object + 10).starts_with(name)) return std::nullopt;
  std::string open(Trim(call.substr(0, object)));
  if (open.ends_with('[')) open.pop_back();
  open = std::string(Trim(open));
  std::string_view key = "arguments";
  if (call.find("\"parameters\"", object) < call.find("\"arguments\"", object)) key = "parameters";
  MarkedFormat format{.bare = open.empty()};
  if (!open.empty()) format.open = {open};
  const size_t end = call.rfind('}');
  std::string_view rest = Trim(call.substr(end + 1));
  if (rest.starts_with(']')) rest = Trim(rest.substr(1));
  // The opening's counterpart closes the call; the end of the turn comes after it.
  if (rest.starts_with("</") || rest.starts_with("<|/") || rest.starts_with("[/")) {
    format.close = {std::string(rest.substr(0, rest.find_first_of(">]") + 1))};
  }
  return Marked("template", std::move(format), StrCat(call.substr(0, object), "{\"name\": \""),
                StrCat("\", \"", key, "\": "));
}

}  // namespace millrace
