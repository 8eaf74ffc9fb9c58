#include "engine/constraints/answer_grammar.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "engine/constraints/call_grammar.h"
#include "engine/text/call_turns.h"
#include "text/tools/recipient_parser.h"

namespace millrace {
namespace {

using Tools = std::vector<GrammarTool>;

bool IsHarmony(const OutputFormat& format) {
  return (format.tools() != nullptr && format.tools()->kind == ToolFormat::Kind::kHarmony) ||
         (format.reasoning() != nullptr && format.reasoning()->harmony);
}

absl::StatusOr<GrammarSpec> ForcedCall(const Chat& chat, const Tools& tools,
                                       const OutputFormat& format) {
  const CallGrammar grammar(format);
  std::vector<GrammarSpec> calls;
  const bool any = chat.forced_tool->empty();
  for (const GrammarTool& tool : tools) {
    if (!any && tool.name != *chat.forced_tool) continue;
    MILLRACE_ASSIGN_OR_RETURN(GrammarSpec call,
                              grammar.Forced(tool, any, CountCalls(chat.messages)));
    calls.push_back(std::move(call));
  }
  return OneOf(std::move(calls));
}

// One of several spellings of a marker.
GrammarSpec AnyOf(const std::string& marker, const std::vector<std::string>& more) {
  std::vector<GrammarSpec> ways = {MarkerSpec(marker)};
  for (const std::string& other : more) ways.push_back(MarkerSpec(other));
  return OneOf(std::move(ways));
}

// Puts the reasoning between two markers before the content.
GrammarSpec BehindReasoning(GrammarSpec content, const AnswerParts& parts, const Tools& tools,
                            const OutputFormat& format) {
  const ReasoningFormat* reasoning = format.reasoning();
  if (reasoning == nullptr) return content;
  const ThinkFormat& think = reasoning->think;
  if (!think.answer_open.empty()) {
    // Some models write markers around the answer itself.
    content = OneOf({SequenceOf({MarkerSpec(think.answer_open), ShortSpace(), content, ShortSpace(),
                                 MarkerSpec(think.answer_close)}),
                     content});
  }
  if (parts.start == AnswerStart::kContent) return content;
  // A call is found in reasoning that has no end, too.
  std::vector<std::string> excluded = think.more_closes;
  excluded.push_back(think.close);
  if (std::any_of(tools.begin(), tools.end(),
                  [](const GrammarTool& tool) { return tool.strict; })) {
    const std::vector<std::string> openings = format.tools()->Opens();
    excluded.insert(excluded.end(), openings.begin(), openings.end());
  }
  GrammarSpec thoughts = SequenceOf(
      {TextWithout(std::move(excluded)), AnyOf(think.close, think.more_closes), ShortSpace()});
  if (parts.start == AnswerStart::kMayThink) {
    thoughts = OptionalPart(
        SequenceOf({ShortSpace(), AnyOf(think.open, think.more_opens), std::move(thoughts)}));
  }
  return SequenceOf({std::move(thoughts), std::move(content)});
}

// An answer in channels: messages of reasoning, and the content or calls.
class ChannelAnswer {
 public:
  ChannelAnswer(const AnswerParts& parts, const Tools& tools, const OutputFormat& format)
      : parts_(parts), tools_(tools), format_(format) {}

  absl::StatusOr<GrammarSpec> Make() const {
    // The prompt has written the header of the content.
    if (parts_.start == AnswerStart::kContent) {
      return parts_.format != nullptr ? *parts_.format : FreeText();
    }
    std::optional<GrammarSpec> call;
    if (!tools_.empty()) {
      MILLRACE_ASSIGN_OR_RETURN(call, CallGrammar(format_).ChannelCall(tools_));
    }
    std::vector<GrammarSpec> before = {Message("analysis", FreeText())};
    if (parts_.format == nullptr) before.push_back(Message("commentary", FreeText()));
    const GrammarSpec reasoning = Repeated(Ended(OneOf(std::move(before))), 0, INT32_MAX);
    const GrammarSpec last = OptionalPart(
        OneOf({MarkerSpec("<|return|>"), MarkerSpec("<|end|>"), MarkerSpec("<|call|>")}));
    const GrammarSpec content =
        Message("final", parts_.format != nullptr ? *parts_.format : FreeText());
    if (!call.has_value()) return SequenceOf({reasoning, content, last});
    const bool several = parts_.parallel_tool_calls;
    const GrammarSpec calls = SequenceOf(
        {Repeated(SequenceOf({Ended(*call), reasoning}), 0, several ? INT32_MAX : 0), *call});
    if (parts_.format != nullptr) return SequenceOf({reasoning, OneOf({content, calls}), last});
    const GrammarSpec calls_first = Repeated(SequenceOf({Ended(*call), reasoning}), 0, INT32_MAX);
    return SequenceOf({reasoning, calls_first, OneOf({content, *call}), last});
  }

 private:
  static GrammarSpec FreeText() {
    return TextWithout({"<|start|>", "<|channel|>", "<|end|>", "<|return|>", "<|call|>"});
  }
  static GrammarSpec Message(std::string_view channel, GrammarSpec body) {
    return SequenceOf({MarkerSpec("<|channel|>"), LiteralSpec(channel),
                       OptionalPart(SequenceOf({RegexSpec(" ?"), MarkerSpec("<|constrain|>"),
                                                RegexSpec("[a-z]{1,16}")})),
                       MarkerSpec("<|message|>"), std::move(body)});
  }
  // A message that another one follows.
  static GrammarSpec Ended(GrammarSpec message) {
    return SequenceOf({std::move(message), OneOf({MarkerSpec("<|end|>"), MarkerSpec("<|call|>")}),
                       MarkerSpec("<|start|>"), LiteralSpec("assistant")});
  }

  const AnswerParts& parts_;
  const Tools& tools_;
  const OutputFormat& format_;
};

}  // namespace

absl::StatusOr<std::optional<HeldAnswer>> AnswerGrammar(const AnswerParts& parts,
                                                        const OutputFormat& format) {
  Tools tools;
  const bool calls = parts.chat != nullptr && parts.chat->parse_tools && format.tools() != nullptr;
  if (calls) tools = ReadGrammarTools(parts.chat->tools, parts.chat->text_tools);
  if (calls && parts.chat->forced_tool.has_value()) {
    MILLRACE_ASSIGN_OR_RETURN(GrammarSpec call, ForcedCall(*parts.chat, tools, format));
    return HeldAnswer{.grammar = std::move(call)};
  }
  const bool strict =
      std::any_of(tools.begin(), tools.end(), [](const GrammarTool& tool) { return tool.strict; });
  if (parts.format == nullptr && !strict) return std::nullopt;
  HeldAnswer held{.free_tokens = !tools.empty() || IsHarmony(format)};
  if (IsHarmony(format)) {
    MILLRACE_ASSIGN_OR_RETURN(held.grammar, ChannelAnswer(parts, tools, format).Make());
    return held;
  }
  GrammarSpec content;
  GrammarSpec whole_format = parts.format == nullptr ? GrammarSpec() : *parts.format;
  const bool addressed = format.tools() != nullptr &&
                         format.tools()->kind == ToolFormat::Kind::kRecipients &&
                         parts.start != AnswerStart::kContent;
  if (addressed) {
    whole_format = SequenceOf({LiteralSpec(StrCat(kRecipientAll, "\n")), std::move(whole_format)});
  }
  if (parts.format == nullptr) {
    const bool may_think = parts.start == AnswerStart::kMayThink && format.reasoning() != nullptr;
    MILLRACE_ASSIGN_OR_RETURN(
        content, CallGrammar(format).TextAndCalls(
                     tools, may_think ? format.reasoning()->think.open : std::string()));
  } else if (tools.empty()) {
    content = std::move(whole_format);
  } else {
    MILLRACE_ASSIGN_OR_RETURN(
        GrammarSpec some,
        CallGrammar(format).Calls(tools, parts.parallel_tool_calls ? INT32_MAX : 1));
    content =
        OneOf({std::move(whole_format), SequenceOf({ShortSpace(), std::move(some), ShortSpace()})});
  }
  held.grammar = BehindReasoning(std::move(content), parts, tools, format);
  return held;
}

GrammarSpec ChannelsAfterReasoning(bool calls) {
  GrammarSpec content = SequenceOf({LiteralSpec("final"), MarkerSpec("<|message|>")});
  return SequenceOf(
      {MarkerSpec("<|end|>"), MarkerSpec("<|start|>"), LiteralSpec("assistant"),
       MarkerSpec("<|channel|>"),
       calls ? OneOf({std::move(content), LiteralSpec("commentary")}) : std::move(content)});
}

}  // namespace millrace
