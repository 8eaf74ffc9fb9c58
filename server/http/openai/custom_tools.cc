#include "server/http/openai/custom_tools.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/strings.h"
#include "formats/json/exact_json.h"
#include "formats/json/json.h"

namespace millrace {
namespace {

// Limits of a call's arguments.
constexpr JsonLimits kArguments{.depth = 512, .repeats = true};

// The arguments before the text, without white space.
constexpr std::string_view kHead = R"({"input":")";

void ReadGrammar(FieldReader& grammar, const std::string& name, std::string& description,
                 TextTools& texts) {
  constexpr std::string_view kSyntaxes = "lark, regex";
  std::string syntax;
  std::string definition;
  if (grammar.Find("syntax") == nullptr) return grammar.FailMissing("syntax", kSyntaxes);
  grammar.Read("syntax", syntax);
  if (grammar.ok() && syntax != "lark" && syntax != "regex") {
    grammar.FailValue("syntax", syntax, kSyntaxes);
  }
  if (grammar.Find("definition") == nullptr) return grammar.FailMissing("definition", "a string");
  grammar.Read("definition", definition);
  if (!grammar.ok()) return;
  const bool lark = syntax == "lark";
  description += StrCat(description.empty() ? "" : "\n\n", "The input must match this ",
                        lark ? "grammar in Lark's syntax:\n" : "regular expression:\n", definition);
  texts[name] = GrammarSpec{.kind = lark ? GrammarSpec::Kind::kEbnf : GrammarSpec::Kind::kRegex,
                            .text = std::move(definition)};
}

void ReadTextFormat(FieldReader& tool, const std::string& path, GrammarPlace place,
                    const std::string& name, std::string& description, TextTools& texts) {
  const OrderedJson* field = tool.Find("format");
  if (field == nullptr) return;
  constexpr std::string_view kTypes = "text, grammar";
  FieldReader format(*field, path + "format.", tool.unknown_fields());
  std::string type;
  if (format.Find("type") == nullptr) format.FailMissing("type", kTypes);
  format.Read("type", type);
  if (format.ok() && type == "grammar" && place == GrammarPlace::kFormat) {
    ReadGrammar(format, name, description, texts);
  } else if (format.ok() && type == "grammar") {
    const OrderedJson* inner = format.Find("grammar");
    if (inner == nullptr) {
      format.FailMissing("grammar", "an object with syntax and definition");
    } else {
      FieldReader grammar(*inner, path + "format.grammar.", tool.unknown_fields());
      ReadGrammar(grammar, name, description, texts);
      format.Fail(grammar.Finish());
    }
  } else if (format.ok() && type != "text") {
    format.FailValue("type", type, kTypes);
  }
  tool.Fail(format.Finish());
}

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

}  // namespace

bool IsToolName(std::string_view name) {
  return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-' || c == '.' || c == '/';
  });
}

void ReadCustomTool(FieldReader& tool, const std::string& path, GrammarPlace place,
                    OrderedJson& tools, TextTools& texts) {
  std::string name;
  std::string description;
  if (tool.Find("name") == nullptr) return tool.FailMissing("name", kToolNames);
  tool.Read("name", name);
  if (tool.ok() && !IsToolName(name)) tool.FailValue("name", name, kToolNames);
  tool.Read("description", description);
  if (!tool.ok()) return;
  TextTools read = {{name, std::nullopt}};
  ReadTextFormat(tool, path, place, name, description, read);
  if (!tool.ok()) return;
  if (!texts.insert(*read.begin()).second) {
    return tool.Fail("name", "invalid_value",
                     StrCat(path, "name is ", Printable(name), ", which another tool has, too"));
  }
  OrderedJson function = {{"name", name}};
  if (!description.empty()) function["description"] = std::move(description);
  function["parameters"] = {
      {"type", "object"},
      {"properties",
       {{kTextArgument,
         {{"type", "string"}, {"description", "The text that the tool takes, as it is."}}}}},
      {"required", OrderedJson::array({kTextArgument})},
      {"additionalProperties", false}};
  tools.push_back({{"type", "function"}, {"function", std::move(function)}});
}

std::string TextArguments(std::string_view text) {
  return OrderedJson{{std::string(kTextArgument), text}}.dump(
      -1, ' ', false, OrderedJson::error_handler_t::replace);
}

void ArgumentTexts::Take(std::vector<ToolCallDelta>& calls) {
  if (tools_.empty()) return;
  std::vector<ToolCallDelta> taken;
  for (ToolCallDelta& call : calls) {
    if (!call.name.empty()) {
      Flush(taken);
      if (tools_.contains(call.name)) {
        state_ = State::kHead;
        index_ = call.index;
        raw_.clear();
        head_ = 0;
      }
    }
    if (state_ == State::kNone) {
      taken.push_back(std::move(call));
      continue;
    }
    std::string text;
    for (const char c : call.arguments) Step(c, text);
    if (call.name.empty() && text.empty()) continue;
    taken.push_back({call.index, std::move(call.name), std::move(text), std::move(call.id), true});
  }
  calls = std::move(taken);
}

void ArgumentTexts::Step(char c, std::string& text) {
  switch (state_) {
    case State::kHead:
      raw_ += c;
      // There is white space between the tokens alone.
      if (IsSpace(c) && (head_ < 2 || head_ + 2 >= kHead.size())) return;
      if (c != kHead[head_]) {
        state_ = State::kWhole;
      } else if (++head_ == kHead.size()) {
        state_ = State::kText;
      }
      return;
    case State::kText:
      if (c == '\\') {
        escape_ = c;
        state_ = State::kEscape;
      } else if (c == '"') {
        state_ = State::kEnd;
      } else {
        text += c;
      }
      return;
    case State::kEscape: {
      escape_ += c;
      if (escape_[1] != 'u') return EndEscape(text);
      if (escape_.size() < 6) return;
      // Half of a pair of surrogates waits for the other half.
      const bool high = escape_.size() < 12 && (escape_[2] == 'd' || escape_[2] == 'D') &&
                        std::string_view("89abAB").find(escape_[3]) != std::string_view::npos;
      if (!high || escape_.size() == 12) return EndEscape(text);
      if (escape_.size() == 6 || (escape_.size() == 7 && c == '\\') ||
          (escape_.size() == 8 && c == 'u') || escape_.size() > 8) {
        return;
      }
      // It is alone.
      const std::string behind = escape_.substr(6);
      escape_.resize(6);
      EndEscape(text);
      for (const char next : behind) Step(next, text);
      return;
    }
    case State::kWhole:
      raw_ += c;
      return;
    case State::kNone:
    case State::kEnd:
      return;
  }
}

void ArgumentTexts::EndEscape(std::string& text) {
  const absl::StatusOr<OrderedJson> decoded = ParseOrdered(StrCat("\"", escape_, "\""), kArguments);
  text += decoded.ok() ? decoded->get<std::string>() : "\xef\xbf\xbd";
  escape_.clear();
  state_ = State::kText;
}

void ArgumentTexts::Flush(std::vector<ToolCallDelta>& calls) {
  std::string text;
  if (state_ == State::kWhole) {
    text = raw_;
    const absl::StatusOr<OrderedJson> json = ParseAsWritten(raw_, kArguments);
    if (json.ok() && json->is_object()) {
      if (json->empty()) text.clear();
      if (const auto input = json->find(std::string(kTextArgument)); input != json->end()) {
        text = TextOrJson(*input);
      }
    }
  }
  state_ = State::kNone;
  if (!text.empty()) calls.push_back({index_, "", std::move(text), "", true});
}

}  // namespace millrace
