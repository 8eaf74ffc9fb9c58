#include "text/grammar/structural_tag.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

using Kind = GrammarSpec::Kind;
using Specs = std::vector<GrammarSpec>;
using Strings = std::vector<std::string>;

constexpr int kMostDepth = 32;
constexpr int kMostSeparated = 4;
constexpr size_t kMostMarker = 64;  // bytes of a special token's name
constexpr std::string_view kTypes =
    "any_text, const_string, json_schema, regex, grammar, sequence, or, optional, plus, star, "
    "repeat, tag, triggered_tags, tags_with_separator, dispatch";

absl::Status Bad(std::string_view name, const JsonValue* value, std::string_view allowed) {
  return absl::InvalidArgumentError(
      value == nullptr ? StrCat(name, " is missing; allowed: ", allowed)
                       : StrCat(name, ": ", Printable(ToJson(*value), 64), "; allowed: ", allowed));
}

GrammarSpec Sequence(Specs parts) { return {.kind = Kind::kSequence, .parts = std::move(parts)}; }
GrammarSpec Alternative(Specs parts) {
  return {.kind = Kind::kAlternative, .parts = std::move(parts)};
}
GrammarSpec Repeat(GrammarSpec part, int32_t min, int32_t max) {
  return {.kind = Kind::kRepeat, .parts = {std::move(part)}, .min = min, .max = max};
}
// Free text in which none of `excluded` occurs, but for the empty string.
GrammarSpec TextWithout(Strings excluded) {
  std::erase(excluded, "");
  return {.kind = Kind::kText, .choices = std::move(excluded)};
}

// Returns the size of what may be the name of a special token at the beginning of `text`, as
// "<|call|>" or "[INST]"; 0 if there is none.
size_t MarkerSize(std::string_view text) {
  const char close = text[0] == '<' ? '>' : text[0] == '[' ? ']' : '\0';
  if (close == '\0') return 0;
  const size_t end = text.substr(0, kMostMarker).find(close);
  const bool name = end != text.npos && end > 1 &&
                    text.substr(1, end).find_first_of("<[ \n\t\"{") == std::string_view::npos;
  return name ? end + 1 : 0;
}

// A text, in which what looks like a special token may be that token.
GrammarSpec Literal(std::string_view text) {
  Specs parts;
  std::string plain;
  while (!text.empty()) {
    const size_t size = MarkerSize(text);
    if (size == 0) {
      plain += text[0];
      text.remove_prefix(1);
      continue;
    }
    if (!plain.empty()) parts.push_back({.kind = Kind::kLiteral, .text = std::exchange(plain, "")});
    parts.push_back({.kind = Kind::kMarker, .text = std::string(text.substr(0, size))});
    text.remove_prefix(size);
  }
  parts.push_back({.kind = Kind::kLiteral, .text = std::move(plain)});
  return Sequence(std::move(parts));
}

// The members of one object: each is asked for by its name, and CheckAll refuses those that were
// not. Members with the value of "nothing" (null, false, []) are passed over.
class Fields {
 public:
  Fields(const JsonValue& object, std::string name) : object_(object), name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  std::string NameOf(std::string_view field) const { return StrCat(name_, ".", field); }
  const JsonValue* Find(std::string_view field) {
    known_.push_back(field);
    const JsonValue* value = object_.Find(field);
    return value != nullptr && value->type != JsonValue::Type::kNull ? value : nullptr;
  }

  absl::StatusOr<std::string> Text(std::string_view field) {
    const JsonValue* value = Find(field);
    if (value == nullptr || !value->is_string()) return Bad(NameOf(field), value, "a string");
    return value->text;
  }
  absl::StatusOr<bool> Flag(std::string_view field, bool otherwise) {
    const JsonValue* value = Find(field);
    if (value == nullptr) return otherwise;
    if (!value->is_bool()) return Bad(NameOf(field), value, "true or false");
    return value->type == JsonValue::Type::kTrue;
  }
  absl::StatusOr<const std::vector<JsonValue>*> List(std::string_view field) {
    const JsonValue* value = Find(field);
    if (value == nullptr || !value->is_array() || value->items.empty()) {
      return Bad(NameOf(field), value, "a list, not empty");
    }
    return &value->items;
  }
  // A list of strings, none of them empty. Without the field: none, unless it is required.
  absl::StatusOr<Strings> Texts(std::string_view field, bool required) {
    constexpr size_t kMost = 64;
    Strings texts;
    const JsonValue* value = Find(field);
    if (value == nullptr && !required) return texts;
    if (value == nullptr || !value->is_array() || value->items.size() > kMost ||
        (required && value->items.empty())) {
      return Bad(NameOf(field), value,
                 StrCat("a list of ", required ? 1 : 0, " to ", kMost, " strings"));
    }
    for (const JsonValue& item : value->items) {
      if (!item.is_string() || item.text.empty()) {
        return Bad(StrCat(NameOf(field), "[", texts.size(), "]"), &item, "a string, not empty");
      }
      texts.push_back(item.text);
    }
    return texts;
  }

  absl::Status CheckAll() const {
    for (const auto& [field, value] : object_.members) {
      const bool nothing = value.type == JsonValue::Type::kNull ||
                           value.type == JsonValue::Type::kFalse ||
                           (value.is_array() && value.items.empty());
      if (nothing || field == "type" ||
          std::find(known_.begin(), known_.end(), field) != known_.end()) {
        continue;
      }
      return absl::InvalidArgumentError(StrCat(NameOf(Printable(field, 64)), " is not supported"));
    }
    return absl::OkStatus();
  }

 private:
  const JsonValue& object_;
  const std::string name_;
  std::vector<std::string_view> known_;
};

class Reader {
 public:
  // Reads a format. Free text at its end ends before each of `until`, the end of the tag around it.
  absl::StatusOr<GrammarSpec> Format(const JsonValue* format, const std::string& name,
                                     const Strings& until) {
    if (format == nullptr || !format->is_object()) return Bad(name, format, "a format, an object");
    if (++depth_ > kMostDepth) {
      return absl::InvalidArgumentError(
          StrCat(name, ": formats are nested more than ", kMostDepth, " deep"));
    }
    Fields fields(*format, name);
    MILLRACE_ASSIGN_OR_RETURN(GrammarSpec spec, OfType(fields, until));
    MILLRACE_RETURN_IF_ERROR(fields.CheckAll());
    --depth_;
    return spec;
  }

  // {"begin": …, "schema": {…}, "end": …} and triggers.
  absl::StatusOr<GrammarSpec> Legacy(Fields& fields) {
    MILLRACE_ASSIGN_OR_RETURN(const auto* structures, fields.List("structures"));
    MILLRACE_ASSIGN_OR_RETURN(const Strings triggers, fields.Texts("triggers", true));
    MILLRACE_RETURN_IF_ERROR(fields.CheckAll());
    Specs tags;
    for (const JsonValue& structure : *structures) {
      const std::string name = StrCat(fields.NameOf("structures"), "[", tags.size(), "]");
      if (!structure.is_object()) return Bad(name, &structure, "an object");
      Fields inner(structure, name);
      MILLRACE_ASSIGN_OR_RETURN(const std::string begin, inner.Text("begin"));
      MILLRACE_ASSIGN_OR_RETURN(const std::string end, inner.Text("end"));
      MILLRACE_RETURN_IF_ERROR(CheckTrigger(inner, begin, triggers));
      MILLRACE_ASSIGN_OR_RETURN(GrammarSpec content, Schema(inner, "schema"));
      MILLRACE_RETURN_IF_ERROR(inner.CheckAll());
      tags.push_back(Sequence({Literal(begin), std::move(content), Literal(end)}));
    }
    return Triggered(TextWithout(triggers), std::move(tags), false, false);
  }

 private:
  absl::StatusOr<GrammarSpec> OfType(Fields& fields, const Strings& until) {
    MILLRACE_ASSIGN_OR_RETURN(const std::string type, fields.Text("type"));
    if (type == "any_text") {
      MILLRACE_ASSIGN_OR_RETURN(Strings excluded, fields.Texts("excludes", false));
      excluded.insert(excluded.end(), until.begin(), until.end());
      return TextWithout(std::move(excluded));
    }
    if (type == "const_string") {
      MILLRACE_ASSIGN_OR_RETURN(const std::string value, fields.Text("value"));
      return Literal(value);
    }
    if (type == "json_schema") {
      const JsonValue* style = fields.Find("style");
      if (style != nullptr && style->text != "json") {
        return Bad(fields.NameOf("style"), style, "json");
      }
      return Schema(fields, "json_schema");
    }
    if (type == "regex" || type == "grammar") {
      const bool regex = type == "regex";
      MILLRACE_ASSIGN_OR_RETURN(std::string text, fields.Text(regex ? "pattern" : "grammar"));
      return GrammarSpec{.kind = regex ? Kind::kRegex : Kind::kEbnf, .text = std::move(text)};
    }
    if (type == "sequence" || type == "or") return Elements(fields, type == "or", until);
    if (type == "optional" || type == "plus" || type == "star" || type == "repeat") {
      return Repeated(fields, type);
    }
    if (type == "tag") return Tag(fields, nullptr);
    if (type == "triggered_tags") return TriggeredTags(fields, until);
    if (type == "tags_with_separator") return TagsWithSeparator(fields);
    if (type == "dispatch") return Dispatch(fields, until);
    return absl::InvalidArgumentError(StrCat(fields.NameOf("type"), ": \"", Printable(type, 64),
                                             "\" is not supported; allowed: ", kTypes));
  }

  absl::StatusOr<GrammarSpec> Schema(Fields& fields, std::string_view field) {
    const JsonValue* schema = fields.Find(field);
    if (schema == nullptr || !(schema->is_object() || schema->is_bool())) {
      return Bad(fields.NameOf(field), schema, "a JSON schema");
    }
    return GrammarSpec{.kind = Kind::kJsonSchema, .text = ToJson(*schema)};
  }

  absl::StatusOr<GrammarSpec> Elements(Fields& fields, bool alternative, const Strings& until) {
    MILLRACE_ASSIGN_OR_RETURN(const auto* elements, fields.List("elements"));
    Specs parts;
    for (const JsonValue& element : *elements) {
      const std::string name = StrCat(fields.NameOf("elements"), "[", parts.size(), "]");
      const bool at_end = alternative || parts.size() + 1 == elements->size();
      MILLRACE_ASSIGN_OR_RETURN(GrammarSpec part,
                                Format(&element, name, at_end ? until : Strings()));
      parts.push_back(std::move(part));
    }
    return alternative ? Alternative(std::move(parts)) : Sequence(std::move(parts));
  }

  absl::StatusOr<GrammarSpec> Repeated(Fields& fields, std::string_view type) {
    int32_t min = type == "plus" ? 1 : 0, max = type == "optional" ? 1 : INT32_MAX;
    if (type == "repeat") {
      constexpr std::string_view kAllowed =
          "min and max, integers with 0 <= min <= max <= 100000; a max of -1 is no bound";
      constexpr int32_t kMost = 100000;
      for (const auto& [field, count] : {std::pair("min", &min), std::pair("max", &max)}) {
        const JsonValue* value = fields.Find(field);
        const auto number =
            value != nullptr && value->is_number() ? ParseDecimal(value->text) : std::nullopt;
        if (!number || !number->is_integer() || number->whole.size() > 6) {
          return Bad(fields.NameOf(field), value, kAllowed);
        }
        *count = std::stoi(number->whole) * (number->negative ? -1 : 1);
        if (field == std::string_view("max") && *count == -1) *count = INT32_MAX;
        if (*count < 0 || (*count > kMost && *count != INT32_MAX)) {
          return Bad(fields.NameOf(field), value, kAllowed);
        }
      }
      if (max < min) return Bad(fields.NameOf("max"), fields.Find("max"), kAllowed);
    }
    MILLRACE_ASSIGN_OR_RETURN(GrammarSpec content,
                              Format(fields.Find("content"), fields.NameOf("content"), {}));
    return Repeat(std::move(content), min, max);
  }

  static absl::Status CheckTrigger(Fields& fields, const std::string& begin,
                                   const Strings& triggers) {
    const auto matching = std::count_if(triggers.begin(), triggers.end(), [&](const auto& trigger) {
      return begin.starts_with(trigger);
    });
    if (matching == 1) return absl::OkStatus();
    return absl::InvalidArgumentError(StrCat(fields.NameOf("begin"), ": \"", Printable(begin, 64),
                                             "\" begins with ", matching,
                                             " of the triggers; allowed: exactly one"));
  }

  // A tag; with triggers, one of them must be its beginning.
  absl::StatusOr<GrammarSpec> Tag(Fields& fields, const Strings* triggers) {
    MILLRACE_ASSIGN_OR_RETURN(const std::string begin, fields.Text("begin"));
    if (triggers != nullptr) MILLRACE_RETURN_IF_ERROR(CheckTrigger(fields, begin, *triggers));
    Strings ends;
    const JsonValue* end = fields.Find("end");
    if (end != nullptr && end->is_string()) {
      ends.push_back(end->text);
    } else if (end != nullptr && end->is_array()) {
      MILLRACE_ASSIGN_OR_RETURN(ends, fields.Texts("end", true));
    } else {
      return Bad(fields.NameOf("end"), end, "a string, or a list of strings");
    }
    MILLRACE_ASSIGN_OR_RETURN(GrammarSpec content,
                              Format(fields.Find("content"), fields.NameOf("content"), ends));
    Specs closings;
    for (const std::string& closing : ends) closings.push_back(Literal(closing));
    return Sequence({Literal(begin), std::move(content), Alternative(std::move(closings))});
  }

  absl::StatusOr<GrammarSpec> Tags(Fields& fields, const Strings* triggers) {
    MILLRACE_ASSIGN_OR_RETURN(const auto* list, fields.List("tags"));
    Specs tags;
    for (const JsonValue& item : *list) {
      const std::string name = StrCat(fields.NameOf("tags"), "[", tags.size(), "]");
      const JsonValue* type = item.Find("type");
      if (!item.is_object() || (type != nullptr && type->text != "tag")) {
        return Bad(name, &item, "a tag");
      }
      Fields inner(item, name);
      MILLRACE_ASSIGN_OR_RETURN(GrammarSpec tag, Tag(inner, triggers));
      MILLRACE_RETURN_IF_ERROR(inner.CheckAll());
      tags.push_back(std::move(tag));
    }
    return Alternative(std::move(tags));
  }

  // Free text with tags in it; with `at_least_one`, it begins with a tag, as XGrammar has it.
  static GrammarSpec Triggered(const GrammarSpec& text, Specs tags, bool at_least_one,
                               bool stop_after_first) {
    GrammarSpec tag = Alternative(std::move(tags));
    if (stop_after_first) {
      return at_least_one ? tag : Sequence({text, Repeat(std::move(tag), 0, 1)});
    }
    GrammarSpec tags_and_text =
        Repeat(Sequence({std::move(tag), text}), at_least_one ? 1 : 0, INT32_MAX);
    return at_least_one ? tags_and_text : Sequence({text, std::move(tags_and_text)});
  }

  absl::StatusOr<GrammarSpec> TriggeredTags(Fields& fields, const Strings& until) {
    MILLRACE_ASSIGN_OR_RETURN(Strings triggers, fields.Texts("triggers", true));
    MILLRACE_ASSIGN_OR_RETURN(GrammarSpec tags, Tags(fields, &triggers));
    MILLRACE_ASSIGN_OR_RETURN(const bool at_least_one, fields.Flag("at_least_one", false));
    MILLRACE_ASSIGN_OR_RETURN(const bool stop, fields.Flag("stop_after_first", false));
    MILLRACE_ASSIGN_OR_RETURN(const Strings excluded, fields.Texts("excludes", false));
    triggers.insert(triggers.end(), excluded.begin(), excluded.end());
    triggers.insert(triggers.end(), until.begin(), until.end());
    return Triggered(TextWithout(std::move(triggers)), std::move(tags.parts), at_least_one, stop);
  }

  absl::StatusOr<GrammarSpec> TagsWithSeparator(Fields& fields) {
    // The grammar has the tags twice, and so all that is within them.
    if (++separated_ > kMostSeparated) {
      return absl::InvalidArgumentError(StrCat(
          fields.name(), ": tags_with_separator is nested more than ", kMostSeparated, " deep"));
    }
    MILLRACE_ASSIGN_OR_RETURN(GrammarSpec tag, Tags(fields, nullptr));
    MILLRACE_ASSIGN_OR_RETURN(const std::string separator, fields.Text("separator"));
    MILLRACE_ASSIGN_OR_RETURN(const bool at_least_one, fields.Flag("at_least_one", false));
    MILLRACE_ASSIGN_OR_RETURN(const bool stop, fields.Flag("stop_after_first", false));
    GrammarSpec list =
        stop ? tag : Sequence({tag, Repeat(Sequence({Literal(separator), tag}), 0, INT32_MAX)});
    --separated_;
    return at_least_one ? list : Repeat(std::move(list), 0, 1);
  }

  // [["pattern", format], …]: what must come after a pattern that occurs in the text.
  absl::StatusOr<GrammarSpec> Dispatch(Fields& fields, const Strings& until) {
    MILLRACE_ASSIGN_OR_RETURN(const auto* rules, fields.List("rules"));
    MILLRACE_ASSIGN_OR_RETURN(const bool loop, fields.Flag("loop", true));
    MILLRACE_ASSIGN_OR_RETURN(Strings excluded, fields.Texts("excludes", false));
    excluded.insert(excluded.end(), until.begin(), until.end());
    Specs ways;
    for (const JsonValue& rule : *rules) {
      const std::string name = StrCat(fields.NameOf("rules"), "[", ways.size(), "]");
      if (!rule.is_array() || rule.items.size() != 2 || !rule.items[0].is_string() ||
          rule.items[0].text.empty()) {
        return Bad(name, &rule, "a pattern, which is a string, and a format");
      }
      MILLRACE_ASSIGN_OR_RETURN(GrammarSpec content,
                                Format(&rule.items[1], StrCat(name, "[1]"), {}));
      ways.push_back(Sequence({Literal(rule.items[0].text), std::move(content)}));
      excluded.push_back(rule.items[0].text);
    }
    return Triggered(TextWithout(std::move(excluded)), std::move(ways), false, !loop);
  }

  int depth_ = 0;
  int separated_ = 0;
};

}  // namespace

absl::StatusOr<GrammarSpec> ReadStructuralTag(const JsonValue& tag, std::string_view name) {
  if (!tag.is_object()) return Bad(name, &tag, "a structural tag, an object");
  Fields fields(tag, std::string(name));
  const JsonValue* type = fields.Find("type");
  if (type == nullptr || type->text != "structural_tag") {
    return Bad(fields.NameOf("type"), type, "structural_tag");
  }
  if (fields.Find("structures") != nullptr) return Reader().Legacy(fields);
  const JsonValue* format = fields.Find("format");
  MILLRACE_RETURN_IF_ERROR(fields.CheckAll());
  return Reader().Format(format, fields.NameOf("format"), {});
}

absl::StatusOr<GrammarSpec> ReadStructuralTag(std::string_view json, std::string_view name) {
  const auto tag = ParseOrderedJson(json, /*depth=*/512);
  if (!tag.ok()) return Annotate(tag.status(), StrCat(name, ": it is no JSON"));
  return ReadStructuralTag(*tag, name);
}

}  // namespace millrace
