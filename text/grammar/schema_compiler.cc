#include "text/grammar/schema_compiler.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "base/status.h"
#include "base/strings.h"
#include "text/grammar/regex_parser.h"

namespace millrace::schema {

uint32_t TypeOf(const JsonValue& value) {
  switch (value.type) {
    case JsonValue::Type::kNull:
      return kNull;
    case JsonValue::Type::kFalse:
    case JsonValue::Type::kTrue:
      return kBoolean;
    case JsonValue::Type::kNumber: {
      const auto decimal = ParseDecimal(value.text);
      return decimal && !decimal->is_integer() ? kFraction : kInteger;
    }
    case JsonValue::Type::kString:
      return kString;
    case JsonValue::Type::kArray:
      return kArray;
    case JsonValue::Type::kObject:
      return kObject;
  }
  return 0;
}

absl::StatusOr<uint32_t> TypesOf(Reader& reader, const JsonValue& schema) {
  if (const JsonValue* bits = schema.Find("\xfftypes")) {
    return static_cast<uint32_t>(std::stoul(bits->text)) & kAnyType;
  }
  const JsonValue* type = schema.Find("type");
  if (type == nullptr) return kAnyType;
  static const std::pair<std::string_view, uint32_t> kNames[] = {
      {"null", kNull},       {"boolean", kBoolean},
      {"integer", kInteger}, {"number", kInteger | kFraction},
      {"string", kString},   {"array", kArray},
      {"object", kObject}};
  const std::vector<JsonValue> one = {*type};
  uint32_t types = 0;
  for (const JsonValue& name : type->is_array() ? type->items : one) {
    const auto known = std::find_if(std::begin(kNames), std::end(kNames),
                                    [&](const auto& pair) { return pair.first == name.text; });
    if (!name.is_string() || known == std::end(kNames)) {
      return reader.Refuse(schema, "type",
                           StrCat("it is ", Printable(ToJson(*type), 64),
                                  "; allowed: null, boolean, integer, number, string, array, "
                                  "object, or a list of them"));
    }
    types |= known->second;
  }
  // OpenAPI 3.0's way to say ["string", "null"].
  const JsonValue* nullable = schema.Find("nullable");
  if (nullable != nullptr && nullable->type == JsonValue::Type::kTrue) types |= kNull;
  return types;
}

absl::StatusOr<std::optional<uint32_t>> Count(Reader& reader, const JsonValue& schema,
                                              std::string_view keyword) {
  const JsonValue* value = schema.Find(keyword);
  if (value == nullptr) return std::optional<uint32_t>();
  const auto decimal = value->is_number() ? ParseDecimal(value->text) : std::nullopt;
  if (!decimal || !decimal->is_integer() || decimal->negative) {
    return reader.Refuse(
        schema, keyword,
        StrCat("it is ", Printable(ToJson(*value), 32), "; allowed: an integer from 0 up"));
  }
  if (decimal->whole.size() > 9) return std::optional(kUnbounded - 1);
  return std::optional(static_cast<uint32_t>(std::stoul(decimal->whole)));
}

absl::StatusOr<NumberBounds> Bounds(Reader& reader, const Base& base) {
  NumberBounds bounds;
  for (const JsonValue* schema : base) {
    for (const char* keyword : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
      const JsonValue* value = schema->Find(keyword);
      if (value == nullptr) continue;
      const auto decimal = value->is_number() ? ParseDecimal(value->text) : std::nullopt;
      if (!decimal) return reader.Refuse(*schema, keyword, "it must be a number");
      const std::string_view name = keyword;
      const bool strict = name.starts_with("exclusive");
      const bool least = name.ends_with("inimum");
      std::optional<Decimal>& bound = least ? bounds.least : bounds.most;
      bool& bound_strict = least ? bounds.above_least : bounds.below_most;
      const int order = bound ? Compare(*decimal, *bound) * (least ? 1 : -1) : 1;
      if (order > 0) {
        bound = decimal;
        bound_strict = strict;
      } else if (order == 0) {
        bound_strict = bound_strict || strict;
      }
    }
  }
  return bounds;
}

std::optional<std::vector<JsonValue>> EnumOf(const Base& base) {
  std::optional<std::vector<JsonValue>> result;
  const auto keep = [&](const std::vector<JsonValue>& values) {
    if (!result) {
      result = values;
      return;
    }
    const absl::flat_hash_set<std::string> keys = EqualKeys(values);
    std::erase_if(*result, [&](const JsonValue& value) { return !keys.contains(EqualKey(value)); });
  };
  for (const JsonValue* schema : base) {
    if (const JsonValue* value = schema->Find("const")) keep({*value});
    if (const JsonValue* values = schema->Find("enum")) keep(values->items);
  }
  return result;
}

absl::StatusOr<uint32_t> Compiler::Types(const Base& base) {
  uint32_t types = kAnyType;
  for (const JsonValue* schema : base) {
    MILLRACE_ASSIGN_OR_RETURN(const uint32_t own, TypesOf(reader_, *schema));
    types &= own;
  }
  return types;
}

absl::StatusOr<Compiler::Counts> Compiler::CountsOf(const Base& base, std::string_view least,
                                                    std::string_view most) {
  Counts counts;
  for (const JsonValue* schema : base) {
    MILLRACE_ASSIGN_OR_RETURN(const auto min, Count(reader_, *schema, least));
    MILLRACE_ASSIGN_OR_RETURN(const auto max, Count(reader_, *schema, most));
    counts.min = std::max(counts.min, min.value_or(0));
    counts.max = std::min(counts.max, max.value_or(kUnbounded));
  }
  return counts;
}

absl::StatusOr<GrammarNode> Compiler::Compile(const Conjunction& conjunction) {
  MILLRACE_RETURN_IF_ERROR(builder_.Check());
  MILLRACE_ASSIGN_OR_RETURN(const Flat flat, reader_.Flatten(conjunction));
  if (flat.never) return builder_.Term(kNothing);
  Conjunction key;
  for (const JsonValue* schema : flat.base) key.push_back({Part::Kind::kBase, schema});
  key.insert(key.end(), flat.alternatives.begin(), flat.alternatives.end());
  std::sort(key.begin(), key.end());
  const auto [it, is_new] = compiled_.try_emplace(std::move(key));
  Compiled& compiled = it->second;  // a map's values stay where they are
  if (!is_new) {
    if (compiled.node.has_value()) return *compiled.node;
    if (!compiled.used) compiled.rule = builder_.AddRule("of a schema");
    compiled.used = true;
    return builder_.Rule(compiled.rule);
  }
  if (++depth_ > builder_.limits().depth) {
    return absl::InvalidArgumentError(
        StrCat("it is too deep: more than ", builder_.limits().depth, " schemas within another"));
  }
  MILLRACE_ASSIGN_OR_RETURN(const GrammarNode node, CompileFlat(flat));
  --depth_;
  if (compiled.used) builder_.SetRule(compiled.rule, node);
  compiled.node = node;
  return node;
}

absl::StatusOr<GrammarNode> Compiler::CompileFlat(const Flat& flat) {
  return flat.alternatives.empty() ? CompileBase(flat.base) : CompileAlternatives(flat);
}

// Chooses a branch of the first alternative; the others come with the next call.
absl::StatusOr<GrammarNode> Compiler::CompileAlternatives(const Flat& flat, bool arguments) {
  Conjunction rest;
  for (const JsonValue* schema : flat.base) rest.push_back({Part::Kind::kBase, schema});
  rest.insert(rest.end(), flat.alternatives.begin() + 1, flat.alternatives.end());
  const Part& choice = flat.alternatives[0];
  const std::vector<JsonValue>& branches = choice.value->items;
  const auto with = [&](const JsonValue& branch) {
    Conjunction both = rest;
    both.push_back({Part::Kind::kSchema, &branch});
    return both;
  };
  std::vector<GrammarNode> nodes;
  for (size_t i = 0; i < branches.size(); ++i) {
    Conjunction conjunction = with(branches[i]);
    for (size_t k = 0; choice.kind == Part::Kind::kOneOf && k < branches.size(); ++k) {
      if (k == i) continue;
      MILLRACE_RETURN_IF_ERROR(builder_.Check());
      MILLRACE_ASSIGN_OR_RETURN(const bool disjoint,
                                Disjoint(with(branches[i]), with(branches[k]), 4));
      if (disjoint) continue;
      const auto negation = reader_.Negation(branches[k]);
      if (!negation.ok()) {
        return reader_.Refuse(
            *choice.value, "oneOf",
            StrCat("branches ", std::min(i, k), " and ", std::max(i, k),
                   " may both hold, and that is not enforced: ", negation.status().message()));
      }
      conjunction.push_back({Part::Kind::kSchema, *negation});
    }
    MILLRACE_ASSIGN_OR_RETURN(const GrammarNode node,
                              arguments ? CompileArguments(conjunction) : Compile(conjunction));
    nodes.push_back(node);
  }
  return builder_.Alternative(nodes);
}

absl::StatusOr<GrammarNode> Compiler::CompileArguments(const Conjunction& conjunction) {
  MILLRACE_RETURN_IF_ERROR(builder_.Check());
  MILLRACE_ASSIGN_OR_RETURN(const Flat flat, reader_.Flatten(conjunction));
  if (flat.never) return builder_.Term(kNothing);
  if (EnumOf(flat.base).has_value() && !reader_.lenient()) {
    return reader_.Refuse(*flat.base.front(), "enum", "of all arguments it is not supported here");
  }
  if (++depth_ > builder_.limits().depth) {
    return absl::InvalidArgumentError("it is too deep: alternatives within alternatives");
  }
  MILLRACE_ASSIGN_OR_RETURN(const GrammarNode node, flat.alternatives.empty()
                                                        ? CompileObject(flat.base, true)
                                                        : CompileAlternatives(flat, true));
  --depth_;
  return node;
}

absl::StatusOr<GrammarNode> Compiler::CompileBase(const Base& base) {
  if (const auto values = EnumOf(base)) {
    return CompileEnum(base, {.type = JsonValue::Type::kArray, .items = *values});
  }
  for (const JsonValue* schema : base) {
    const JsonValue* forbidden = schema->Find("\xffnotEnum");
    if (forbidden == nullptr) continue;
    for (const JsonValue& value : forbidden->items) {
      if (value.is_string() || TypeOf(value) == kNull || value.is_bool()) continue;
      MILLRACE_ASSIGN_OR_RETURN(const uint32_t allowed, Types(base));
      if ((TypeOf(value) & allowed) != 0) {
        return reader_.Refuse(*schema, "not",
                              "to forbid a number, an array or an object is not supported");
      }
    }
  }
  MILLRACE_ASSIGN_OR_RETURN(const uint32_t types, Types(base));
  std::vector<GrammarNode> nodes;
  const auto forbidden = [&](const JsonValue& value) {
    return std::any_of(base.begin(), base.end(), [&](const JsonValue* schema) {
      const JsonValue* values = schema->Find("\xffnotEnum");
      return values != nullptr && Lists(*values, value);
    });
  };
  if ((types & kNull) != 0 && !forbidden({.type = JsonValue::Type::kNull})) {
    nodes.push_back(builder_.Literal(json_.null()));
  }
  if ((types & kBoolean) != 0) {
    if (!forbidden({.type = JsonValue::Type::kTrue}))
      nodes.push_back(builder_.Literal(json_.truth(true)));
    if (!forbidden({.type = JsonValue::Type::kFalse}))
      nodes.push_back(builder_.Literal(json_.truth(false)));
  }
  if ((types & (kInteger | kFraction)) != 0) {
    MILLRACE_ASSIGN_OR_RETURN(const GrammarNode node, CompileNumber(base, types));
    nodes.push_back(node);
  }
  if ((types & kString) != 0) {
    MILLRACE_ASSIGN_OR_RETURN(const GrammarNode node, CompileString(base));
    nodes.push_back(node);
  }
  if ((types & kArray) != 0) {
    MILLRACE_ASSIGN_OR_RETURN(const GrammarNode node, CompileArray(base));
    nodes.push_back(node);
  }
  if ((types & kObject) != 0) {
    MILLRACE_ASSIGN_OR_RETURN(const GrammarNode node, CompileObject(base));
    nodes.push_back(node);
  }
  return builder_.Alternative(nodes);
}

absl::StatusOr<GrammarNode> Compiler::CompileEnum(const Base& base, const JsonValue& values) {
  std::vector<GrammarNode> nodes;
  std::vector<std::string> strings;
  for (const JsonValue& value : values.items) {
    MILLRACE_RETURN_IF_ERROR(builder_.Check());
    MILLRACE_ASSIGN_OR_RETURN(const bool holds, HoldsBase(value, base));
    if (!holds) continue;
    if (value.is_string() && json_.notation() == Notation::kJson) {
      strings.emplace_back();
      AppendJsonString(value.text, &strings.back());
    } else {
      nodes.push_back(json_.Constant(value));
    }
  }
  // Many strings make a tree, so that few of them are followed at a time.
  nodes.push_back(builder_.Term(pool_.OneOf({strings.begin(), strings.end()})));
  return builder_.Alternative(nodes);
}

absl::StatusOr<GrammarNode> Compiler::CompileNumber(const Base& base, uint32_t types) {
  MILLRACE_ASSIGN_OR_RETURN(const NumberBounds bounds, Bounds(reader_, base));
  const bool integers = (types & kFraction) == 0;
  std::vector<Regular> all = {integers ? json_.Integer(bounds) : json_.Number(bounds)};
  for (const JsonValue* schema : base) {
    const JsonValue* divisor = schema->Find("multipleOf");
    if (divisor == nullptr) continue;
    const auto decimal = divisor->is_number() ? ParseDecimal(divisor->text) : std::nullopt;
    if (!decimal || decimal->negative || decimal->is_zero()) {
      return reader_.Refuse(*schema, "multipleOf", "it must be a number above 0");
    }
    const auto term = json_.MultipleOf(*decimal, bounds, integers);
    if (!term) {
      return reader_.Refuse(
          *schema, "multipleOf",
          StrCat("it is ", Printable(divisor->text, 32), "; supported: at most five digits"));
    }
    all.push_back(*term);
  }
  // Multiples are numbers within the bounds already, and may have fewer forms.
  if (all.size() > 1) all.erase(all.begin());
  if ((types & kInteger) == 0) all.push_back(json_.WithFraction());
  return builder_.Term(all.size() == 1 ? all[0] : pool_.And(all));
}

// Nothing: the pattern is passed over.
absl::StatusOr<std::optional<Regular>> Compiler::Pattern(const JsonValue& schema,
                                                         std::string_view keyword,
                                                         std::string_view pattern, TextForm form) {
  const std::pair<TextForm, std::string> key(form, pattern);
  const auto found = patterns_.find(key);
  if (found != patterns_.end()) return found->second;
  if (patterns_.size() == builder_.limits().patterns) {
    if (reader_.lenient()) return std::optional<Regular>();
    return reader_.Refuse(
        schema, keyword,
        StrCat("the schema has more than ", builder_.limits().patterns, " patterns"));
  }
  const auto term = ParseRegex(pool_, pattern, form, RegexMode::kSearch, builder_.limits().depth);
  MILLRACE_RETURN_IF_ERROR(builder_.Check());
  if (!term.ok() && !reader_.lenient()) {
    return reader_.Refuse(schema, keyword, std::string(term.status().message()));
  }
  return patterns_[key] = term.ok() ? std::optional(*term) : std::nullopt;
}

}  // namespace millrace::schema
