// The arguments of calls that write each of them as an element: <parameter=city>Paris</parameter>.
#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "engine/constraints/call_grammar.h"
#include "engine/constraints/element_objects.h"
#include "formats/json/exact_json.h"

namespace millrace {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Kind = GrammarSpec::Kind;

// Elements of any keys are counted up to so many.
constexpr size_t kMostFree = 1000;
// The largest sum of bytes of the schemas of one tool's properties, each with what it refers to. A
// grammar has at most twice as many.
constexpr size_t kMostSchemaBytes = 1 << 19;
// The largest sum of bytes of one tool's elements, with these schemas.
constexpr size_t kMostElementBytes = 7 << 17;

// Returns what DeepSeek says of a value beside its key; empty: the schema does not tell.
std::string_view IsText(const OrderedJson& schema) {
  if (!schema.is_object() || !schema.contains("type")) return "";
  return schema["type"] == "string" ? "true" : "false";
}

}  // namespace

// The elements of a call whose arguments are no JSON object: in the order of the properties.
absl::StatusOr<GrammarSpec> CallGrammar::Elements(const GrammarTool& tool, Hold hold) const {
  const GrammarSpec any = TextWithout({tools_.xml.value_close});
  if (hold == Hold::kFree) return FreeElements(any);
  if (!tool.parameters.is_object() || tool.parameters.empty()) return SequenceOf({});
  const auto objects = ElementObjects(tool.parameters, hold == Hold::kLenient);
  if (!objects.ok()) {
    return absl::InvalidArgumentError(
        StrCat("tools has the keyword ", objects.status().message(), " in the parameters of ",
               Printable(tool.name),
               ", a strict tool, which is not enforced in this model's form of calls"));
  }
  std::vector<GrammarSpec> ways;
  size_t bytes = 0;
  size_t element_bytes = 0;
  const auto value = [&](const OrderedJson& schema) {
    // A lenient tool's value may be anything where its schema is too large.
    const bool passed_over = hold == Hold::kLenient && bytes > kMostSchemaBytes;
    GrammarSpec spec = Value(tool, passed_over ? OrderedJson(true) : schema, hold);
    bytes += spec.text.size();
    if (hold != Hold::kLenient || bytes <= kMostSchemaBytes) return spec;
    return Value(tool, true, hold);
  };
  for (const ElementObject& object : *objects) {
    if (!object.lists) {
      if (object.additional.has_value() && *object.additional == false) {
        ways.push_back(SequenceOf({}));
        continue;
      }
      const bool typed = object.additional.has_value() && object.additional->is_object();
      GrammarSpec free = FreeElements(typed ? value(*object.additional) : any);
      free.min = static_cast<int32_t>(std::min<size_t>(object.least, kMostFree));
      free.max = object.most > kMostFree ? INT32_MAX : static_cast<int32_t>(object.most);
      free.max = std::max(free.min, free.max);
      ways.push_back(std::move(free));
      continue;
    }
    std::vector<ListedElement> elements;
    for (const auto& [key, schema] : object.properties.items()) {
      elements.push_back({.key = key,
                          .element = Element(key, value(schema), IsText(schema)),
                          .required = object.required.contains(key)});
      element_bytes += elements.back().element.TextBytes();
      if (hold == Hold::kLenient && element_bytes > kMostElementBytes) return FreeElements(any);
      if (hold == Hold::kLenient || bytes <= kMostSchemaBytes) continue;
      return absl::InvalidArgumentError(StrCat("tools has parameters of ", Printable(tool.name),
                                               ", a strict tool, whose properties have more than ",
                                               kMostSchemaBytes,
                                               " bytes of schemas, each with what it refers to"));
    }
    std::optional<GrammarSpec> way = Listed(object, elements, {});
    if (way.has_value()) ways.push_back(*std::move(way));
  }
  if (ways.empty()) {
    return absl::InvalidArgumentError(
        StrCat("tools has parameters of ", Printable(tool.name), " that no arguments at all meet"));
  }
  return OneOf(std::move(ways));
}

// Returns the elements from the place of `elements` on, behind those with `keys`. Nothing: no
// choice of them will do.
std::optional<GrammarSpec> CallGrammar::Listed(const ElementObject& object,
                                               absl::Span<const ListedElement> elements,
                                               const std::set<std::string, std::less<>>& keys) {
  std::vector<GrammarSpec> parts;
  if (object.IsPlain()) {
    for (const ListedElement& one : elements) {
      parts.push_back(one.required ? one.element : OptionalPart(one.element));
    }
    return SequenceOf(std::move(parts));
  }
  if (elements.empty()) {
    return object.Allows(keys) ? std::optional(SequenceOf({})) : std::nullopt;
  }
  const ListedElement& first = elements.front();
  std::set<std::string, std::less<>> with = keys;
  with.insert(first.key);
  std::vector<GrammarSpec> ways;
  if (auto rest = Listed(object, elements.subspan(1), with)) {
    ways.push_back(SequenceOf({first.element, *std::move(rest)}));
  }
  if (!first.required) {
    if (auto rest = Listed(object, elements.subspan(1), keys)) ways.push_back(*std::move(rest));
  }
  return ways.empty() ? std::nullopt : std::optional(OneOf(std::move(ways)));
}

// Returns the grammar of one element and the white space after it. `is_text` is what DeepSeek says
// beside the key; empty: either. `line` is the regular expression of what stands at either end of a
// value without tags of its own.
GrammarSpec CallGrammar::Element(const std::string& key, GrammarSpec value,
                                 std::string_view is_text, std::string_view line) const {
  const XmlFormat& xml = tools_.xml;
  std::vector<GrammarSpec> parts = {Text(xml.key_open), LiteralSpec(key)};
  if (xml.key_close.starts_with('"')) {
    const std::string attribute = is_text.empty() ? "(true|false)" : std::string(is_text);
    parts.push_back(RegexSpec(StrCat("(\" string=\"", attribute, ")?")));
  }
  parts.push_back(Text(xml.key_close));
  const bool framed = !xml.value_open.empty();
  parts.push_back(framed ? ShortSpace() : RegexSpec(line));
  if (framed) parts.push_back(Text(xml.value_open));
  parts.push_back(std::move(value));
  if (!framed) parts.push_back(RegexSpec(line));
  parts.push_back(Text(xml.value_close));
  parts.push_back(ShortSpace());
  return SequenceOf(std::move(parts));
}

// Elements of any keys.
GrammarSpec CallGrammar::FreeElements(GrammarSpec value) const {
  GrammarSpec element = Element("", std::move(value), "true");
  element.parts[1] = RegexSpec("[A-Za-z0-9_.$-]{1,128}");
  if (tools_.xml.key_close.starts_with('"')) {
    element.parts[2] = RegexSpec("(\" string=\"(true|false))?");
  }
  return Repeated(std::move(element), 0, INT32_MAX);
}

GrammarSpec CallGrammar::Value(const GrammarTool& tool, const OrderedJson& schema,
                               Hold hold) const {
  return {.kind = Kind::kElement,
          .text = DumpExact(PropertySchema(tool.parameters, schema)),
          .choices = {tools_.xml.value_close},
          .closed = true,
          .lenient = hold == Hold::kLenient};
}

}  // namespace millrace
