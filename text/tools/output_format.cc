#include "text/tools/output_format.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "text/tools/harmony_parser.h"
#include "text/tools/recipient_parser.h"

namespace millrace {
namespace {

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
    {"gemma4", "<|channel>", "<channel|>"},
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
  if (row.name == "gemma4") format.think.label = "thought";
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
  // "<response>" alone is what MiniMax's templates put around the results of tools.
  if (has("<think></think>") && has("<response></response>")) return GraniteTags();
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
  for (std::string& name : ToolFormatNames()) names.push_back(std::move(name));
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
    format.tools_ = ToolFormatShown(chat_template);
  } else if (tool_parser != "none") {
    format.tools_ = ToolFormatNamed(tool_parser);
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

std::vector<std::string> ReasoningFormat::Closes() const {
  std::vector<std::string> closes = {think.close};
  closes.insert(closes.end(), think.more_closes.begin(), think.more_closes.end());
  return closes;
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
  add({std::string(LiteralQuote(tools_->marked.arguments))});
  add({tools_->xml.name_open, tools_->xml.key_open, tools_->xml.key_close, tools_->xml.value_open,
       tools_->xml.value_close, tools_->xml.call_close, "<｜tool▁sep｜>", "｜DSML｜"});
  return markers;
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

std::string OutputFormat::ForcedCall(std::string_view name, std::string_view prompt_end,
                                     size_t calls_before) const {
  if (!tools_) return "";
  std::string text;
  if (BeginsReasoning(prompt_end)) text = StrCat("\n", reasoning_->think.close, "\n\n");
  return StrCat(text, tools_->call_begins, name,
                name.empty() ? std::string() : tools_->AfterName(calls_before));
}

std::unique_ptr<OutputParser> OutputFormat::MakeParser(const Request& request) const {
  const bool calls = request.tools && tools_.has_value();
  const bool reasons = request.reasoning && reasoning_.has_value();
  const bool keeps = request.keeps_reasoning && reasoning_.has_value();
  // All answers to chats have this form.
  if (tools_ && tools_->kind == ToolFormat::Kind::kRecipients && (calls || request.chat)) {
    return MakeRecipientParser(request.signatures);
  }
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

}  // namespace millrace
