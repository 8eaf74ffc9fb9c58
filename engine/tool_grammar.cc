#include "engine/tool_grammar.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "text/tools/json_call.h"

namespace millrace {
namespace {

using Kind = GrammarSpec::Kind;

struct Tool {
  std::string name;
  OrderedJson parameters;  // a schema, or null
  bool strict = false;
};

std::vector<Tool> ReadGrammarTools(const std::string& text) {
  std::vector<Tool> tools;
  const auto list = ParseOrdered(text, kCallJson);
  if (!list.ok() || !list->is_array()) return tools;
  for (const OrderedJson& entry : *list) {
    const OrderedJson& function = entry.at("function");
    tools.push_back({.name = function.at("name").get<std::string>(),
                     .parameters = function.value("parameters", OrderedJson()),
                     .strict = function.value("strict", OrderedJson()) == true});
  }
  return tools;
}

GrammarSpec Sequence(std::vector<GrammarSpec> parts) {
  return {.kind = Kind::kSequence, .parts = std::move(parts)};
}

GrammarSpec Repeat(GrammarSpec part, int32_t max) {
  return {.kind = Kind::kRepeat, .parts = {std::move(part)}, .min = 0, .max = max};
}

GrammarSpec TextWithout(std::string text) {
  return {.kind = Kind::kText, .choices = {std::move(text)}};
}

// Builds the grammars of one format's calls.
class CallGrammar {
 public:
  explicit CallGrammar(const OutputFormat& format)
      : tools_(*format.tools()), markers_(format.Markers()) {
    std::erase_if(markers_, [](const std::string& marker) {
      return marker.size() < 3 || marker.find_first_of("<[") == std::string::npos;
    });
  }

  // A text in which markers may be special tokens.
  GrammarSpec Text(std::string_view text) const {
    std::vector<GrammarSpec> parts;
    std::string literal;
    const auto flush = [&] {
      if (!literal.empty()) {
        parts.push_back({.kind = Kind::kLiteral, .text = std::exchange(literal, std::string())});
      }
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
      parts.push_back({.kind = Kind::kMarker, .text = *marker});
      text.remove_prefix(marker->size());
    }
    flush();
    return Sequence(std::move(parts));
  }

  // A call from its name on, or from its arguments on.
  absl::StatusOr<GrammarSpec> Call(const Tool& tool, bool with_name) const {
    std::vector<GrammarSpec> parts;
    if (with_name) parts.push_back(Text(StrCat(tool.name, tools_.arguments_begin)));
    MILLRACE_ASSIGN_OR_RETURN(GrammarSpec arguments, tools_.kind == ToolFormat::Kind::kXml
                                                         ? Elements(tool)
                                                         : Arguments(tool));
    parts.push_back(std::move(arguments));
    // Where a call is an object, it ends after its arguments.
    if (tools_.call_begins.find('{') != std::string::npos) {
      parts.push_back({.kind = Kind::kLiteral, .text = "}"});
    }
    return Sequence(std::move(parts));
  }

 private:
  absl::StatusOr<GrammarSpec> Arguments(const Tool& tool) const {
    if (!tool.parameters.is_object()) return GrammarSpec{.kind = Kind::kJsonObject};
    OrderedJson schema = tool.parameters;
    if (!schema.contains("type")) schema["type"] = "object";
    return GrammarSpec{.kind = Kind::kJsonSchema, .text = schema.dump()};
  }

  // The elements of a call whose arguments are no JSON object: in the order of the properties.
  absl::StatusOr<GrammarSpec> Elements(const Tool& tool) const {
    std::vector<GrammarSpec> parts;
    if (tool.parameters.is_object()) {
      MILLRACE_RETURN_IF_ERROR(
          CheckKeywords(tool.name, tool.parameters,
                        {"type", "properties", "required", "description", "title",
                         "additionalProperties", "$schema", "$defs", "definitions"}));
      const OrderedJson required = tool.parameters.value("required", OrderedJson::array());
      const OrderedJson properties = tool.parameters.value("properties", OrderedJson::object());
      for (const auto& [key, schema] : properties.items()) {
        MILLRACE_ASSIGN_OR_RETURN(GrammarSpec value, Value(tool, key, schema));
        GrammarSpec element =
            Sequence({Text(StrCat(tools_.xml.key_open, key, tools_.xml.key_close,
                                  tools_.xml.value_open.empty() ? "\n" : tools_.xml.value_open)),
                      std::move(value),
                      Text(StrCat(tools_.xml.value_open.empty() ? "\n" : "", tools_.xml.value_close,
                                  "\n"))});
        const bool must = std::find(required.begin(), required.end(), key) != required.end();
        parts.push_back(must ? std::move(element) : Repeat(std::move(element), 1));
      }
    }
    parts.push_back(Text(tools_.xml.call_close));
    return Sequence(std::move(parts));
  }

  // A string stands as it is, anything else as JSON.
  absl::StatusOr<GrammarSpec> Value(const Tool& tool, const std::string& key,
                                    const OrderedJson& schema) const {
    if (!schema.is_object() || schema.value("type", OrderedJson()) != "string") {
      OrderedJson whole = schema.is_object() ? schema : OrderedJson::object();
      for (const char* name : {"$defs", "definitions"}) {
        if (tool.parameters.contains(name)) whole[name] = tool.parameters[name];
      }
      return GrammarSpec{.kind = Kind::kJsonSchema, .text = whole.dump()};
    }
    MILLRACE_RETURN_IF_ERROR(
        CheckKeywords(StrCat(tool.name, ".", key), schema,
                      {"type", "description", "title", "default", "examples", "enum"}));
    const auto values = schema.find("enum");
    if (values == schema.end()) return TextWithout(tools_.xml.value_close);
    GrammarSpec choice{.kind = Kind::kChoice};
    for (const OrderedJson& value : *values) {
      if (value.is_string()) choice.choices.push_back(value.get<std::string>());
    }
    return choice;
  }

  static absl::Status CheckKeywords(std::string_view where, const OrderedJson& schema,
                                    std::initializer_list<std::string_view> known) {
    for (const auto& [keyword, value] : schema.items()) {
      if (std::find(known.begin(), known.end(), keyword) != known.end()) continue;
      return absl::InvalidArgumentError(StrCat(
          "tools has the keyword ", Printable(keyword), " in the parameters of ", Printable(where),
          ", which is not enforced in this model's form of calls; allowed: ", JoinList(known)));
    }
    return absl::OkStatus();
  }

  const ToolFormat& tools_;
  std::vector<std::string> markers_;
};

// Text and calls, in any order, of which each is held to its tool's schema.
absl::StatusOr<GrammarSpec> AnswerGrammar(const std::vector<Tool>& tools,
                                          const OutputFormat& format, bool inside_reasoning) {
  const ToolFormat& form = *format.tools();
  if (form.kind != ToolFormat::Kind::kMarked || form.marked.open.size() != 1 ||
      form.marked.close.size() != 1 || form.marked.header || form.marked.bare) {
    return absl::InvalidArgumentError(
        StrCat("tools has a strict tool, which is not enforced for calls in the form ", form.name,
               " unless tool_choice is required or a tool's name"));
  }
  const CallGrammar grammar(format);
  const std::string& open = form.marked.open[0];
  std::vector<GrammarSpec> calls;
  for (Tool tool : tools) {
    if (!tool.strict) tool.parameters = OrderedJson();
    MILLRACE_ASSIGN_OR_RETURN(GrammarSpec call, grammar.Call(tool, /*with_name=*/true));
    calls.push_back(std::move(call));
  }
  const std::string list = form.call_begins.find('[') == std::string::npos ? "" : "]";
  const GrammarSpec call = Sequence({grammar.Text(form.call_begins),
                                     {.kind = Kind::kAlternative, .parts = std::move(calls)},
                                     grammar.Text(StrCat(list, "\n", form.marked.close[0])),
                                     TextWithout(open)});
  std::vector<GrammarSpec> parts;
  if (const ReasoningFormat* reasoning = format.reasoning();
      reasoning != nullptr && !reasoning->harmony) {
    GrammarSpec thoughts = Sequence({TextWithout(reasoning->think.close),
                                     {.kind = Kind::kMarker, .text = reasoning->think.close}});
    if (!inside_reasoning) {
      thoughts =
          Repeat(Sequence({{.kind = Kind::kMarker, .text = reasoning->think.open}, thoughts}), 1);
    }
    parts.push_back(std::move(thoughts));
  }
  parts.push_back(TextWithout(open));
  parts.push_back(Repeat(call, INT32_MAX));
  return Sequence(std::move(parts));
}

}  // namespace

absl::StatusOr<std::optional<GrammarSpec>> ToolGrammar(const Chat& chat, const OutputFormat& format,
                                                       bool inside_reasoning) {
  if (!chat.parse_tools || format.tools() == nullptr) return std::nullopt;
  const std::vector<Tool> tools = ReadGrammarTools(chat.tools);
  if (chat.forced_tool.has_value()) {
    const CallGrammar grammar(format);
    std::vector<GrammarSpec> calls;
    const bool any = chat.forced_tool->empty();
    for (const Tool& tool : tools) {
      if (!any && tool.name != *chat.forced_tool) continue;
      MILLRACE_ASSIGN_OR_RETURN(GrammarSpec call, grammar.Call(tool, any));
      calls.push_back(std::move(call));
    }
    return GrammarSpec{.kind = Kind::kAlternative, .parts = std::move(calls)};
  }
  const bool strict =
      std::any_of(tools.begin(), tools.end(), [](const Tool& tool) { return tool.strict; });
  if (!strict) return std::nullopt;
  return AnswerGrammar(tools, format, inside_reasoning);
}

}  // namespace millrace
