#include "engine/constraints/call_grammar.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "formats/json/exact_json.h"
#include "text/tools/json_call.h"
#include "text/tools/literal_reader.h"
#include "text/tools/recipient_parser.h"

namespace millrace {
namespace {

using Kind = GrammarSpec::Kind;

constexpr std::string_view kSpace = "[ \\t\\r\\n]{0,4}";
constexpr std::string_view kFence = "```";

std::string_view WithoutPrefix(std::string_view text, std::string_view prefix) {
  if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  return text;
}

std::string_view TrimmedRight(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  return text;
}

std::string EscapedRegex(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view("\\|.?*+()[]{}^$/").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// One part or more, of which white space or `between` stands between two.
GrammarSpec Several(GrammarSpec part, std::string_view between, int32_t most) {
  if (most <= 1) return part;
  GrammarSpec more = SequenceOf({RegexSpec(between), part});
  return SequenceOf({std::move(part), Repeated(std::move(more), 0, INT32_MAX)});
}

}  // namespace

GrammarSpec SequenceOf(std::vector<GrammarSpec> parts) {
  return {.kind = Kind::kSequence, .parts = std::move(parts)};
}
GrammarSpec OneOf(std::vector<GrammarSpec> parts) {
  return {.kind = Kind::kAlternative, .parts = std::move(parts)};
}
GrammarSpec Repeated(GrammarSpec part, int32_t min, int32_t max) {
  return {.kind = Kind::kRepeat, .parts = {std::move(part)}, .min = min, .max = max};
}
GrammarSpec OptionalPart(GrammarSpec part) { return Repeated(std::move(part), 0, 1); }
GrammarSpec MarkerSpec(std::string_view text) {
  return {.kind = Kind::kMarker, .text = std::string(text)};
}
GrammarSpec LiteralSpec(std::string_view text) {
  return {.kind = Kind::kLiteral, .text = std::string(text)};
}
GrammarSpec RegexSpec(std::string_view regex) {
  return {.kind = Kind::kRegex, .text = std::string(regex)};
}
GrammarSpec TextWithout(std::vector<std::string> texts) {
  return {.kind = Kind::kText, .choices = std::move(texts)};
}
GrammarSpec ShortSpace() { return RegexSpec(kSpace); }

std::vector<GrammarTool> ReadGrammarTools(const std::string& text, const TextTools& texts) {
  std::vector<GrammarTool> tools;
  const auto list = ParseExact(text, kCallJson);
  if (!list.ok() || !list->is_array()) return tools;
  for (const OrderedJson& entry : *list) {
    const OrderedJson& function = entry.at("function");
    tools.push_back({.name = function.at("name").get<std::string>(),
                     .parameters = function.value("parameters", OrderedJson()),
                     .strict = function.value("strict", OrderedJson()) == true});
    const auto held = texts.find(tools.back().name);
    if (held == texts.end() || !held->second.has_value()) continue;
    tools.back().text = held->second;
    tools.back().strict = true;
  }
  return tools;
}

CallGrammar::CallGrammar(const OutputFormat& format)
    : tools_(*format.tools()), markers_(format.Markers()) {
  std::erase_if(markers_, [](const std::string& marker) {
    return marker.size() < 3 || marker.find_first_of("<[") == std::string::npos;
  });
}

GrammarSpec CallGrammar::Text(std::string_view text) const {
  std::vector<GrammarSpec> parts;
  std::string literal;
  const auto flush = [&] {
    if (!literal.empty()) parts.push_back(LiteralSpec(std::exchange(literal, std::string())));
  };
  while (!text.empty()) {
    const auto marker = std::find_if(markers_.begin(), markers_.end(),
                                     [&](const auto& one) { return text.starts_with(one); });
    if (marker == markers_.end()) {
      literal += text.front();
      text.remove_prefix(1);
      continue;
    }
    flush();
    parts.push_back(MarkerSpec(*marker));
    text.remove_prefix(marker->size());
  }
  flush();
  return SequenceOf(std::move(parts));
}

GrammarSpec CallGrammar::AnyMarker(const std::vector<std::string>& markers) const {
  std::vector<GrammarSpec> parts;
  for (const std::string& marker : markers) parts.push_back(MarkerSpec(marker));
  return OneOf(std::move(parts));
}

// ---- Arguments ----

absl::StatusOr<GrammarSpec> CallGrammar::Arguments(const GrammarTool& tool, Hold hold) const {
  if (tool.text.has_value()) return TextArgument(*tool.text);
  if (tools_.kind == ToolFormat::Kind::kXml) return Elements(tool, hold);
  const ArgumentForm form = tools_.marked.arguments;
  const bool literals = form != ArgumentForm::kJson;
  if (hold == Hold::kFree && !literals) return GrammarSpec{.kind = Kind::kJsonObject};
  OrderedJson schema = tool.parameters;
  if (hold == Hold::kFree) schema = {{"type", "object"}};
  // A function without parameters has none.
  if (!schema.is_object() || schema.empty()) {
    schema = {{"type", "object"}, {"properties", OrderedJson::object()}};
  }
  if (hold == Hold::kLenient || !schema.contains("type")) schema["type"] = "object";
  GrammarSpec arguments{.kind = literals ? Kind::kArguments : Kind::kJsonSchema,
                        .text = DumpExact(schema),
                        .closed = true,
                        .lenient = hold != Hold::kStrict};
  if (!literals) return arguments;
  arguments.notation = python()                       ? Notation::kPython
                       : form == ArgumentForm::kGemma ? Notation::kGemma
                                                      : Notation::kFunctionGemma;
  return SequenceOf(
      {LiteralSpec(python() ? "(" : "{"), std::move(arguments), LiteralSpec(python() ? ")" : "}")});
}

// Returns the grammar of the single argument of a tool that takes a text.
GrammarSpec CallGrammar::TextArgument(GrammarSpec text) const {
  if (tools_.kind == ToolFormat::Kind::kXml) {
    text.choices = {tools_.xml.value_close};
    // One line break at either end is not of the value, so that it stands there always: another one
    // may be the text's own.
    if (!tools_.xml.value_open.empty()) {
      text = SequenceOf({LiteralSpec("\n"), std::move(text), LiteralSpec("\n")});
    }
    return Element(std::string(kTextArgument), std::move(text), "true", "\\n");
  }
  if (const std::string_view quote = LiteralQuote(tools_.marked.arguments); !quote.empty()) {
    text.choices = {std::string(quote)};
    return SequenceOf({LiteralSpec(StrCat("{", kTextArgument, ":")), Text(quote), std::move(text),
                       Text(quote), LiteralSpec("}")});
  }
  text.in_json_string = true;
  if (python()) {
    return SequenceOf(
        {LiteralSpec(StrCat("(", kTextArgument, "=\"")), std::move(text), LiteralSpec("\")")});
  }
  const std::string s(kSpace);
  return SequenceOf({RegexSpec(StrCat("\\{", s, "\"", kTextArgument, "\"", s, ":", s, "\"")),
                     std::move(text), RegexSpec(StrCat("\"", s, "\\}"))});
}

// ---- Calls ----

absl::StatusOr<GrammarSpec> CallGrammar::Forced(const GrammarTool& tool, bool with_name,
                                                size_t calls_before) const {
  std::vector<GrammarSpec> parts;
  if (with_name) parts.push_back(Text(StrCat(tool.name, tools_.AfterName(calls_before))));
  MILLRACE_ASSIGN_OR_RETURN(GrammarSpec arguments,
                            Arguments(tool, tool.strict ? Hold::kStrict : Hold::kLenient));
  parts.push_back(std::move(arguments));
  if (tools_.kind == ToolFormat::Kind::kXml) parts.push_back(Text(tools_.xml.call_close));
  // Where a call is an object, it ends after its arguments.
  if (tools_.call_begins.find('{') != std::string::npos) parts.push_back(LiteralSpec("}"));
  return SequenceOf(std::move(parts));
}

absl::StatusOr<std::vector<GrammarSpec>> CallGrammar::EachTool(
    const std::vector<GrammarTool>& tools,
    absl::StatusOr<GrammarSpec> (CallGrammar::*make)(const GrammarTool&, Hold) const) const {
  std::vector<GrammarSpec> calls;
  for (const GrammarTool& tool : tools) {
    MILLRACE_ASSIGN_OR_RETURN(GrammarSpec call,
                              (this->*make)(tool, tool.strict ? Hold::kStrict : Hold::kFree));
    calls.push_back(std::move(call));
  }
  return calls;
}

// {"name": "f", "arguments": {…}}
absl::StatusOr<GrammarSpec> CallGrammar::ObjectCall(const GrammarTool& tool, Hold hold) const {
  MILLRACE_ASSIGN_OR_RETURN(GrammarSpec arguments, Arguments(tool, hold));
  const std::string s(kSpace);
  return SequenceOf({RegexSpec(StrCat("\\{", s, "(\"type\"", s, ":", s, "\"function\"", s, ",", s,
                                      ")?\"name\"", s, ":", s)),
                     LiteralSpec(StrCat("\"", tool.name, "\"")),
                     RegexSpec(StrCat(s, ",", s, "\"(arguments|parameters)\"", s, ":", s)),
                     std::move(arguments),
                     // Mistral Nemo gives its calls ids.
                     RegexSpec(StrCat("(", s, ",", s, "\"id\"", s, ":", s,
                                      "\"[A-Za-z0-9_-]{1,64}\")?", s, "\\}"))});
}

// f[ARGS]{…}, functions.f:0<|tool_call_argument_begin|>{…}<|tool_call_end|>
absl::StatusOr<GrammarSpec> CallGrammar::HeaderCall(const GrammarTool& tool, Hold hold) const {
  const MarkedFormat& form = tools_.marked;
  std::string_view before = tools_.call_begins;
  for (const std::string& open : form.open) before = WithoutPrefix(Trim(before), open);
  const std::string_view after = tools_.arguments_begin;
  std::vector<GrammarSpec> parts = {MarkerSpec(form.open.back())};
  // MiroThinker's calls name a server, which may be any.
  if (const size_t server = before.find("</server_name>"); server != before.npos) {
    parts.push_back(RegexSpec("[^<\\n]{1,64}"));
    before.remove_prefix(server);
  }
  parts.push_back(Text(before));
  parts.push_back(LiteralSpec(tool.name));
  if (tools_.numbered) parts.push_back(RegexSpec(":[0-9]{1,3}"));
  const auto id = std::find(form.after_name.begin(), form.after_name.end(), "[CALL_ID]");
  if (id != form.after_name.end()) {
    parts.push_back(OptionalPart(SequenceOf({MarkerSpec(*id), RegexSpec("[A-Za-z0-9]{1,32}")})));
  }
  parts.push_back(Text(TrimmedRight(after)));
  parts.push_back(ShortSpace());
  MILLRACE_ASSIGN_OR_RETURN(GrammarSpec arguments, Arguments(tool, hold));
  parts.push_back(std::move(arguments));
  if (after.find(kFence) != after.npos) {
    parts.push_back(ShortSpace());
    parts.push_back(LiteralSpec(kFence));
  }
  if (!form.close.empty()) {
    parts.push_back(ShortSpace());
    parts.push_back(MarkerSpec(form.close.front()));
  }
  return SequenceOf(std::move(parts));
}

// f(a=1)
absl::StatusOr<GrammarSpec> CallGrammar::PythonCall(const GrammarTool& tool, Hold hold) const {
  MILLRACE_ASSIGN_OR_RETURN(GrammarSpec arguments, Arguments(tool, hold));
  return SequenceOf({LiteralSpec(tool.name), std::move(arguments)});
}

// f, a line break, {…}
absl::StatusOr<GrammarSpec> CallGrammar::RecipientCall(const GrammarTool& tool, Hold hold) const {
  MILLRACE_ASSIGN_OR_RETURN(GrammarSpec arguments, Arguments(tool, hold));
  return SequenceOf({LiteralSpec(StrCat(tool.name, "\n")), std::move(arguments)});
}

// <function=f>…</function>
absl::StatusOr<GrammarSpec> CallGrammar::ElementCall(const GrammarTool& tool, Hold hold) const {
  MILLRACE_ASSIGN_OR_RETURN(GrammarSpec elements, Arguments(tool, hold));
  return SequenceOf({Text(tools_.xml.name_open), LiteralSpec(tool.name),
                     Text(TrimmedRight(tools_.arguments_begin)), ShortSpace(), std::move(elements),
                     Text(tools_.xml.call_close)});
}

// [f(a=1), g()] between markers; or a call on each line.
absl::StatusOr<GrammarSpec> CallGrammar::PythonSection(const std::vector<GrammarTool>& tools,
                                                       int32_t most) const {
  const bool list = tools_.call_begins.ends_with('[');
  GrammarSpec calls;
  if (list) {
    MILLRACE_ASSIGN_OR_RETURN(calls, BareCalls(tools, most));
  } else {
    MILLRACE_ASSIGN_OR_RETURN(std::vector<GrammarSpec> each,
                              EachTool(tools, &CallGrammar::PythonCall));
    calls = Several(OneOf(std::move(each)), "\\n{1,2}", most);
  }
  // A marker of several that may stand before calls need not have a counterpart.
  GrammarSpec close = SequenceOf({ShortSpace(), AnyMarker(tools_.marked.close)});
  const bool pairs = tools_.marked.open.size() == tools_.marked.close.size();
  return Several(SequenceOf({AnyMarker(tools_.marked.open), ShortSpace(), std::move(calls),
                             pairs ? std::move(close) : OptionalPart(std::move(close))}),
                 kSpace, most);
}

// Returns calls and the markers around them.
absl::StatusOr<GrammarSpec> CallGrammar::Section(const std::vector<GrammarTool>& tools,
                                                 int32_t most) const {
  if (python()) return PythonSection(tools, most);
  const bool elements = tools_.kind == ToolFormat::Kind::kXml;
  const bool objects = !elements && tools_.call_begins.find('{') != std::string::npos;
  if (!objects) {
    MILLRACE_ASSIGN_OR_RETURN(
        std::vector<GrammarSpec> calls,
        EachTool(tools, elements ? &CallGrammar::ElementCall : &CallGrammar::HeaderCall));
    GrammarSpec list = Several(OneOf(std::move(calls)), kSpace, most);
    const std::vector<std::string>& opens = elements ? tools_.xml.dropped : tools_.marked.open;
    const std::vector<std::string>& closes = elements ? tools_.xml.dropped : tools_.marked.close;
    if (opens.size() < 2 || closes.size() < 2) return list;
    return Several(SequenceOf({MarkerSpec(opens.front()), ShortSpace(), std::move(list),
                               ShortSpace(), MarkerSpec(closes.back())}),
                   kSpace, most);
  }
  MILLRACE_ASSIGN_OR_RETURN(std::vector<GrammarSpec> calls,
                            EachTool(tools, &CallGrammar::ObjectCall));
  const GrammarSpec call = OneOf(std::move(calls));
  const GrammarSpec list = SequenceOf({RegexSpec(StrCat("\\[", kSpace)),
                                       Several(call, StrCat(kSpace, ",", kSpace), most),
                                       RegexSpec(StrCat(kSpace, "\\]"))});
  std::vector<GrammarSpec> parts = {AnyMarker(tools_.marked.open), ShortSpace(),
                                    OneOf({call, list})};
  if (!tools_.marked.close.empty()) {
    GrammarSpec close = SequenceOf({ShortSpace(), AnyMarker(tools_.marked.close)});
    // Where calls are a list, models often leave it out.
    const bool lists = WithoutPrefix(tools_.call_begins, tools_.marked.open.front()).find('[') !=
                       std::string_view::npos;
    parts.push_back(lists ? OptionalPart(std::move(close)) : std::move(close));
  }
  return Several(SequenceOf(std::move(parts)), kSpace, most);
}

// Returns calls without a marker before them.
absl::StatusOr<GrammarSpec> CallGrammar::BareCalls(const std::vector<GrammarTool>& tools,
                                                   int32_t most) const {
  if (python()) {
    MILLRACE_ASSIGN_OR_RETURN(std::vector<GrammarSpec> calls,
                              EachTool(tools, &CallGrammar::PythonCall));
    return SequenceOf({RegexSpec(StrCat("\\[", kSpace)),
                       Several(OneOf(std::move(calls)), StrCat(kSpace, ",", kSpace), most),
                       RegexSpec(StrCat(kSpace, "\\]"))});
  }
  MILLRACE_ASSIGN_OR_RETURN(std::vector<GrammarSpec> calls,
                            EachTool(tools, &CallGrammar::ObjectCall));
  return Several(OneOf(std::move(calls)), StrCat(kSpace, "[;,]?", kSpace), most);
}

absl::StatusOr<GrammarSpec> CallGrammar::Calls(const std::vector<GrammarTool>& tools,
                                               int32_t most) const {
  if (recipients()) {
    MILLRACE_ASSIGN_OR_RETURN(std::vector<GrammarSpec> calls,
                              EachTool(tools, &CallGrammar::RecipientCall));
    return Several(OneOf(std::move(calls)), StrCat(kSpace, kRecipientOpen), most);
  }
  std::vector<GrammarSpec> ways;
  if (tools_.marked.bare && tools_.kind == ToolFormat::Kind::kMarked) {
    MILLRACE_ASSIGN_OR_RETURN(GrammarSpec bare, BareCalls(tools, most));
    ways.push_back(std::move(bare));
  }
  if (!tools_.Opens().empty()) {
    MILLRACE_ASSIGN_OR_RETURN(GrammarSpec section, Section(tools, most));
    ways.push_back(std::move(section));
  }
  return OneOf(std::move(ways));
}

absl::StatusOr<GrammarSpec> CallGrammar::TextAndCalls(const std::vector<GrammarTool>& tools,
                                                      std::string_view not_first) const {
  if (recipients()) {
    MILLRACE_ASSIGN_OR_RETURN(std::vector<GrammarSpec> messages,
                              EachTool(tools, &CallGrammar::RecipientCall));
    messages.push_back(SequenceOf(
        {LiteralSpec(StrCat(kRecipientAll, "\n")), TextWithout({std::string(kRecipientOpen)})}));
    return Several(OneOf(std::move(messages)), StrCat(kSpace, kRecipientOpen), INT32_MAX);
  }
  const bool bare = tools_.marked.bare && tools_.kind == ToolFormat::Kind::kMarked;
  const GrammarSpec text = TextWithout(tools_.Opens());
  std::vector<GrammarSpec> marked = {text};
  // An object at the start is a call, and so is a list that begins as one of calls does.
  if (bare) {
    std::string regex = "(?![ \\t\\r\\n]*\\{)";
    if (python()) {
      std::string names;
      for (const GrammarTool& tool : tools) {
        names += StrCat(names.empty() ? "" : "|", EscapedRegex(tool.name));
      }
      regex = StrCat("(?![ \\t\\r\\n]*\\[[\\[\\],; \\t\\r\\n]*(\\{|(", names, ")\\())");
    }
    if (!not_first.empty()) regex += StrCat("(?![ \\t\\r\\n]*", EscapedRegex(not_first), ")");
    for (const std::string& opening : tools_.Opens()) {
      regex += StrCat("(?![^]*", EscapedRegex(opening), ")");
    }
    marked[0] = RegexSpec(regex + "[^]*");
  }
  if (!tools_.Opens().empty()) {
    MILLRACE_ASSIGN_OR_RETURN(GrammarSpec section, Section(tools, INT32_MAX));
    marked.push_back(Repeated(SequenceOf({std::move(section), text}), 0, INT32_MAX));
  }
  if (!bare) return SequenceOf(std::move(marked));
  MILLRACE_ASSIGN_OR_RETURN(GrammarSpec calls, BareCalls(tools, INT32_MAX));
  return OneOf(
      {SequenceOf(std::move(marked)), SequenceOf({ShortSpace(), std::move(calls), ShortSpace()})});
}

absl::StatusOr<GrammarSpec> CallGrammar::ChannelCall(const std::vector<GrammarTool>& tools) const {
  std::vector<GrammarSpec> calls;
  for (const GrammarTool& tool : tools) {
    MILLRACE_ASSIGN_OR_RETURN(GrammarSpec arguments,
                              Arguments(tool, tool.strict ? Hold::kStrict : Hold::kFree));
    const GrammarSpec recipient = LiteralSpec(StrCat(" to=functions.", tool.name));
    const GrammarSpec channel = MarkerSpec("<|channel|>");
    const GrammarSpec name = RegexSpec("commentary|analysis");
    calls.push_back(SequenceOf(
        {OneOf({SequenceOf({channel, name, recipient}), SequenceOf({recipient, channel, name})}),
         OptionalPart(SequenceOf(
             {RegexSpec(" ?"), OptionalPart(MarkerSpec("<|constrain|>")), LiteralSpec("json")})),
         MarkerSpec("<|message|>"), std::move(arguments)}));
  }
  return OneOf(std::move(calls));
}

}  // namespace millrace
