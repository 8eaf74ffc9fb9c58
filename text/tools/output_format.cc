#include "text/tools/output_format.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "text/tools/harmony_parser.h"

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
  MarkedFormat format{
      .open = {"[TOOL_CALLS]"}, .after_name = {"[CALL_ID]", "[ARGS]"}, .header = true};
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

ToolFormat DeepSeekV32() {
  return Xml("deepseek_v32",
             {.name_open = "<｜DSML｜invoke name=\"",
              .name_close = {"\">"},
              .key_open = "<｜DSML｜parameter name=\"",
              .key_close = "\">",
              .value_open = "",
              .value_close = "</｜DSML｜parameter>",
              .call_close = "</｜DSML｜invoke>",
              .dropped = {"<｜DSML｜function_calls>", "</｜DSML｜function_calls>"}},
             "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"", "\">\n");
}

ToolFormat Kimi() {
  return Marked("kimi_k2",
                {.open = {"<|tool_calls_section_begin|>", "<|tool_call_begin|>"},
                 .close = {"<|tool_call_end|>", "<|tool_calls_section_end|>"},
                 .before_name = {"functions."},
                 .after_name = {"<|tool_call_argument_begin|>", ":"},
                 .header = true},
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
                ":0<|tool_call_argument_begin|>");
}

ToolFormat Qwen3Coder() {
  return Xml("qwen3_coder",
             {.name_open = "<function=",
              .name_close = {">"},
              .key_open = "<parameter=",
              .key_close = ">",
              .value_open = "",
              .value_close = "</parameter>",
              .call_close = "</function>",
              .dropped = {"<tool_call>", "</tool_call>"}},
             "<tool_call>\n<function=", ">\n");
}

ToolFormat Glm45() {
  return Xml("glm45",
             {.name_open = "<tool_call>",
              .name_close = {"\n", "<arg_key>"},
              .key_open = "<arg_key>",
              .key_close = "</arg_key>",
              .value_open = "<arg_value>",
              .value_close = "</arg_value>",
              .call_close = "</tool_call>",
              .dropped = {}},
             "<tool_call>", "\n");
}

ToolFormat MiniMax() {
  return Xml("minimax_m2",
             {.name_open = "<invoke name=\"",
              .name_close = {"\">"},
              .key_open = "<parameter name=\"",
              .key_close = "\">",
              .value_open = "",
              .value_close = "</parameter>",
              .call_close = "</invoke>",
              .dropped = {"<minimax:tool_call>", "</minimax:tool_call>"}},
             "<minimax:tool_call>\n<invoke name=\"", "\">\n");
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
    {"｜DSML｜", DeepSeekV32},
    {"function<｜tool▁sep｜>", [] { return DeepSeek(true); }},
    {"'function' + '<｜tool▁sep｜>'", [] { return DeepSeek(true); }},
    {"tool['type'] + '<｜tool▁sep｜>'", [] { return DeepSeek(true); }},
    {"<｜tool▁calls▁begin｜>", [] { return DeepSeek(false); }},
    {"<|tool_calls_section_begin|>", Kimi},
    {"<parameter=", Qwen3Coder},  // "<function=" is functionary's, too, before an object
    {"<minimax:tool_call>", MiniMax},
    {"<arg_key>", Glm45},
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
    {"deepseek_v32", DeepSeekV32},
    {"granite", Granite},
    {"kimi_k2", Kimi},
    {"qwen3_coder", Qwen3Coder},
    {"qwen3_xml", Qwen3Coder},
    {"glm45", Glm45},
    {"glm47", Glm45},
    {"minimax_m2", MiniMax},
};

struct ReasoningName {
  std::string_view name;
  std::string_view open;
  std::string_view close;
};
constexpr ReasoningName kReasoningNames[] = {
    {"deepseek_r1", "<think>", "</think>"},
    {"deepseek_v3", "<think>", "</think>"},
    {"qwen3", "<think>", "</think>"},
    {"glm45", "<think>", "</think>"},
    {"kimi_k2", "<think>", "</think>"},
    {"minimax_m2", "<think>", "</think>"},
    {"mistral", "[THINK]", "[/THINK]"},
    {"seed_oss", "<seed:think>", "</seed:think>"},
    {"granite", "Here is my thought process:", "Here is my response:"},
    {"openai_gptoss", "", ""},
};

ReasoningFormat MakeReasoning(const ReasoningName& row) {
  return {.name = std::string(row.name),
          .harmony = row.open.empty(),
          .think = {std::string(row.open), std::string(row.close)}};
}

// By the template alone, "<think>" tells nothing of whose it is: the format is the same.
std::optional<ReasoningFormat> ReasoningOf(std::string_view chat_template) {
  const auto has = [&](std::string_view text) { return chat_template.find(text) != text.npos; };
  if (has("<|channel|>") && has("<|message|>")) return MakeReasoning(std::end(kReasoningNames)[-1]);
  for (const ReasoningName& row : kReasoningNames) {
    const bool shown = !row.open.empty() && (has(row.open) || has(row.close));
    if (!shown) continue;
    if (row.name == "deepseek_r1" && has("<|im_start|>")) return MakeReasoning(kReasoningNames[2]);
    return MakeReasoning(row);
  }
  return std::nullopt;
}

std::string_view TrimmedRight(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  return text;
}

}  // namespace

std::vector<std::string> OutputFormat::ToolParsers() {
  std::vector<std::string> names = {"auto", "none"};
  for (const ToolName& row : kToolNames) names.emplace_back(row.name);
  return names;
}

std::vector<std::string> OutputFormat::ReasoningParsers() {
  std::vector<std::string> names = {"auto", "none"};
  for (const ReasoningName& row : kReasoningNames) names.emplace_back(row.name);
  return names;
}

absl::StatusOr<OutputFormat> OutputFormat::Choose(std::string_view chat_template,
                                                  std::string_view tool_parser,
                                                  std::string_view reasoning_parser) {
  OutputFormat format;
  if (tool_parser == "auto") {
    for (const ToolSign& sign : kToolSigns) {
      if (chat_template.find(sign.text) == chat_template.npos) continue;
      format.tools_ = sign.make();
      break;
    }
  } else if (tool_parser != "none") {
    for (const ToolName& row : kToolNames) {
      if (row.name == tool_parser) format.tools_ = row.make();
    }
    if (!format.tools_) {
      return absl::InvalidArgumentError(
          StrCat("tool-call-parser is ", tool_parser, "; allowed: ", JoinList(ToolParsers())));
    }
  }
  if (reasoning_parser == "auto") {
    format.reasoning_ = ReasoningOf(chat_template);
  } else if (reasoning_parser != "none") {
    for (const ReasoningName& row : kReasoningNames) {
      if (row.name == reasoning_parser) format.reasoning_ = MakeReasoning(row);
    }
    if (!format.reasoning_) {
      return absl::InvalidArgumentError(StrCat("reasoning-parser is ", reasoning_parser,
                                               "; allowed: ", JoinList(ReasoningParsers())));
    }
  }
  return format;
}

std::vector<std::string> OutputFormat::Markers() const {
  std::vector<std::string> markers;
  const auto add = [&](const std::vector<std::string>& texts) {
    markers.insert(markers.end(), texts.begin(), texts.end());
  };
  const bool harmony =
      (tools_ && tools_->kind == ToolFormat::Kind::kHarmony) || (reasoning_ && reasoning_->harmony);
  if (harmony) {
    add({"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>"});
  }
  if (reasoning_ && !reasoning_->harmony) add({reasoning_->think.open, reasoning_->think.close});
  if (!tools_) return markers;
  for (const auto* texts :
       {&tools_->marked.open, &tools_->marked.close, &tools_->marked.before_name,
        &tools_->marked.after_name, &tools_->xml.dropped}) {
    add(*texts);
  }
  add({tools_->xml.name_open, tools_->xml.key_open, tools_->xml.key_close, tools_->xml.value_open,
       tools_->xml.value_close, tools_->xml.call_close, "<｜tool▁sep｜>", "｜DSML｜"});
  return markers;
}

bool OutputFormat::BeginsReasoning(std::string_view prompt_end) const {
  return reasoning_ && !reasoning_->harmony &&
         TrimmedRight(prompt_end).ends_with(reasoning_->think.open);
}

std::string OutputFormat::ForcedCall(std::string_view name, std::string_view prompt_end) const {
  if (!tools_) return "";
  std::string text;
  if (BeginsReasoning(prompt_end)) text = StrCat("\n", reasoning_->think.close, "\n\n");
  return StrCat(text, tools_->call_begins, name, name.empty() ? "" : tools_->arguments_begin);
}

std::unique_ptr<OutputParser> OutputFormat::MakeParser(const Request& request) const {
  const bool calls = request.tools && tools_.has_value();
  const bool reasons = request.reasoning && reasoning_.has_value();
  if (!calls && !reasons) return nullptr;
  if (calls ? tools_->kind == ToolFormat::Kind::kHarmony : reasoning_->harmony) {
    return MakeHarmonyParser(calls);
  }
  std::unique_ptr<OutputParser> parser;
  if (calls && tools_->kind == ToolFormat::Kind::kXml) {
    parser = MakeXmlParser(&tools_->xml, request.signatures);
  } else if (calls) {
    parser = MakeMarkedParser(&tools_->marked, request.signatures);
  }
  if (!reasons || reasoning_->harmony) return parser;
  return std::make_unique<ThinkParser>(reasoning_->think, request.inside_reasoning,
                                       std::move(parser));
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
