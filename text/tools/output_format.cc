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
  return Marked("kimi_k2",
                {.open = {"<|tool_calls_section_begin|>", "<|tool_call_begin|>"},
                 .close = {"<|tool_call_end|>", "<|tool_calls_section_end|>"},
                 .before_name = {"functions."},
                 .after_name = {"<|tool_call_argument_begin|>", ":"},
                 .header = true,
                 .after_id = "<|tool_call_argument_begin|>"},
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
                ":0<|tool_call_argument_begin|>");
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

ToolFormat Glm45() {
  return Xml("glm45",
             {.name_open = "<tool_call>",
              .name_close = "",
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
    {"<tool_calls>[", Apriel},
    {"functools[", FireFunction},
    {"<seed:tool_call>", SeedOss},
    {"<parameter=", Qwen3Coder},  // "<function=" is Functionary's, too, before an object
    {"<function=", Functionary},
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
    {"deepseek_v32", [] { return DeepSeekElements(false); }},
    {"deepseek_v4", [] { return DeepSeekElements(true); }},
    {"granite", Granite},
    {"kimi_k2", Kimi},
    {"qwen3_coder", Qwen3Coder},
    {"qwen3_xml", Qwen3Coder},
    {"step3p5", Qwen3Coder},
    {"seed_oss", SeedOss},
    {"glm45", Glm45},
    {"glm47", Glm45},
    {"minimax_m2", MiniMax},
    {"apertus", Apertus},
    {"apriel", Apriel},
    {"cohere", Cohere},
    {"command_r", CommandR},
    {"firefunction", FireFunction},
    {"functionary_v31", Functionary},
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
    {"cohere", "<|START_THINKING|>", "<|END_THINKING|>"},
    {"apertus", "<|inner_prefix|>", "<|inner_suffix|>"},
    {"openai_gptoss", "", ""},
};

ReasoningFormat MakeReasoning(const ReasoningName& row) {
  ReasoningFormat format = {.name = std::string(row.name),
                            .harmony = row.open.empty(),
                            .think = {std::string(row.open), std::string(row.close)}};
  if (row.name == "cohere") {
    format.think.answer_open = "<|START_RESPONSE|>";
    format.think.answer_close = "<|END_RESPONSE|>";
  }
  if (row.name != "granite") return format;
  // Granite 3.2 writes sentences, in two spellings; 3.3 writes tags.
  format.think.more_opens = {"Here's my thought process:", "<think>"};
  format.think.more_closes = {"Here's my response:", "</think>"};
  format.think.answer_open = "<response>";
  format.think.answer_close = "</response>";
  return format;
}

// The same, with the tags first: prompts that end a thought do it by them.
ReasoningFormat GraniteTags() {
  ReasoningFormat format =
      MakeReasoning(*std::find_if(std::begin(kReasoningNames), std::end(kReasoningNames),
                                  [](const ReasoningName& row) { return row.name == "granite"; }));
  std::swap(format.think.open, format.think.more_opens.back());
  std::swap(format.think.close, format.think.more_closes.back());
  return format;
}

// By the template alone, "<think>" tells nothing of whose it is: the format is the same.
std::optional<ReasoningFormat> ReasoningOf(std::string_view chat_template) {
  const auto has = [&](std::string_view text) { return chat_template.find(text) != text.npos; };
  if (has("<|channel|>") && has("<|message|>")) return MakeReasoning(std::end(kReasoningNames)[-1]);
  if (has("<think>") && has("<response>")) return GraniteTags();
  for (const ReasoningName& row : kReasoningNames) {
    const bool shown = !row.open.empty() && (has(row.open) || has(row.close));
    if (!shown) continue;
    if (row.name == "deepseek_r1" && has("<|im_start|>")) return MakeReasoning(kReasoningNames[2]);
    return MakeReasoning(row);
  }
  return std::nullopt;
}

// Takes the whole text for content.
class ContentParser : public OutputParser {
 public:
  void Finish(AnswerEnd, OutputDelta*) override {}

 private:
  void Step(char c, OutputDelta* out) override { out->content += c; }
};

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
  if (reasoning_ && !reasoning_->harmony) {
    const ThinkFormat& think = reasoning_->think;
    add({think.open, think.close, think.answer_open, think.answer_close});
    add(think.more_opens);
    add(think.more_closes);
  }
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

std::vector<std::string> ToolFormat::Opens() const {
  if (kind != Kind::kXml) return marked.open;
  std::vector<std::string> opens = {xml.name_open};
  for (const std::string& text : xml.dropped) {
    if (!text.starts_with("</")) opens.push_back(text);
  }
  return opens;
}

bool OutputFormat::BeginsReasoning(std::string_view prompt_end, std::string_view prefill) const {
  if (!reasoning_ || reasoning_->harmony) return false;
  // Returns where the last of these begins, counted from 1.
  const auto last = [&](const std::string& one, const std::vector<std::string>& more) {
    size_t place = prefill.rfind(one) + 1;
    for (const std::string& text : more) place = std::max(place, prefill.rfind(text) + 1);
    return place;
  };
  const ThinkFormat& think = reasoning_->think;
  const size_t open = last(think.open, think.more_opens);
  const size_t close = last(think.close, think.more_closes);
  if (open != close) return open > close;
  // Templates trim what a client gave.
  const std::string_view given = Trim(prefill);
  std::string_view before = TrimmedRight(prompt_end);
  if (!given.empty() && before.ends_with(given)) {
    before = TrimmedRight(before.substr(0, before.size() - given.size()));
  }
  return before.ends_with(think.open) ||
         std::any_of(think.more_opens.begin(), think.more_opens.end(),
                     [&](const std::string& text) { return before.ends_with(text); });
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
  const bool keeps = request.keeps_reasoning && reasoning_.has_value();
  if (!calls && !reasons && !keeps) return nullptr;
  if (calls ? tools_->kind == ToolFormat::Kind::kHarmony : reasoning_->harmony) {
    return MakeHarmonyParser(calls, /*separates=*/reasons || !keeps);
  }
  NextParser next = [] { return nullptr; };
  if (calls && tools_->kind == ToolFormat::Kind::kXml) {
    next = [this, tools = request.signatures] { return MakeXmlParser(&tools_->xml, tools); };
  } else if (calls) {
    next = [this, tools = request.signatures] { return MakeMarkedParser(&tools_->marked, tools); };
  }
  if (!reasons || reasoning_->harmony) {
    std::unique_ptr<OutputParser> parser = next();
    return parser == nullptr ? std::make_unique<ContentParser>() : std::move(parser);
  }
  return MakeThinkParser(reasoning_->think, request.inside_reasoning,
                         calls ? tools_->Opens() : std::vector<std::string>(), std::move(next));
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
