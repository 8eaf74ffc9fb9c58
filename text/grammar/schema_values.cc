// Which constants meet a schema, and which schemas no value meets together.
#include <algorithm>
#include <initializer_list>

#include "absl/cleanup/cleanup.h"
#include "base/status.h"
#include "base/strings.h"
#include "text/grammar/regex_parser.h"
#include "text/grammar/schema_compiler.h"

namespace millrace::schema {
namespace {

// Whether `required` names it in one of the schemas.
bool Requires(const Base& base, std::string_view name) {
  return std::any_of(base.begin(), base.end(), [name](const JsonValue* schema) {
    const JsonValue* list = schema->Find("required");
    return list != nullptr && std::any_of(list->items.begin(), list->items.end(),
                                          [&](const JsonValue& item) { return item.text == name; });
  });
}

bool IsUnique(const Base& base) {
  return std::any_of(base.begin(), base.end(), [](const JsonValue* schema) {
    const JsonValue* unique = schema->Find("uniqueItems");
    return unique != nullptr && unique->type == JsonValue::Type::kTrue;
  });
}

bool HasEqualItems(const JsonValue& list) {
  return EqualKeys(list.items).size() < list.items.size();
}

bool HasAny(const Base& base, std::initializer_list<std::string_view> keywords) {
  return std::any_of(base.begin(), base.end(), [&](const JsonValue* schema) {
    return std::any_of(keywords.begin(), keywords.end(), [schema](std::string_view keyword) {
      return schema->Find(keyword) != nullptr;
    });
  });
}

// Bounds how many schemas a constant is held to, one because of another: references may lead to
// themselves.
constexpr int kMostHolds = 1000;

}  // namespace

bool Compiler::Lists(const JsonValue& list, const JsonValue& value) {
  const auto [it, is_new] = listed_.try_emplace(&list);
  if (is_new) it->second = EqualKeys(list.items);
  return it->second.contains(EqualKey(value));
}

absl::StatusOr<bool> Compiler::Holds(const JsonValue& value, const Conjunction& conjunction) {
  MILLRACE_RETURN_IF_ERROR(builder_.Check());
  if (depth_of_holds_ == kMostHolds) {
    return absl::InvalidArgumentError(
        StrCat("it is too deep: more than ", kMostHolds, " schemas of a constant"));
  }
  ++depth_of_holds_;
  const auto left = absl::MakeCleanup([this] { --depth_of_holds_; });
  MILLRACE_ASSIGN_OR_RETURN(const Flat flat, reader_.Flatten(conjunction));
  if (flat.never) return false;
  for (const Part& alternative : flat.alternatives) {
    int holding = 0;
    for (const JsonValue& branch : alternative.value->items) {
      MILLRACE_ASSIGN_OR_RETURN(const bool holds, Holds(value, {{Part::Kind::kSchema, &branch}}));
      holding += holds ? 1 : 0;
    }
    if (holding == 0 || (alternative.kind == Part::Kind::kOneOf && holding > 1)) return false;
  }
  return HoldsBase(value, flat.base);
}

absl::StatusOr<bool> Compiler::HoldsBase(const JsonValue& value, const Base& base) {
  MILLRACE_ASSIGN_OR_RETURN(const uint32_t types, Types(base));
  if ((TypeOf(value) & types) == 0) return false;
  for (const JsonValue* schema : base) {
    const JsonValue* constant = schema->Find("const");
    if (constant != nullptr && EqualKey(value) != EqualKey(*constant)) return false;
    const JsonValue* values = schema->Find("enum");
    if (values != nullptr && !Lists(*values, value)) return false;
    const JsonValue* forbidden = schema->Find("\xffnotEnum");
    if (forbidden != nullptr && Lists(*forbidden, value)) return false;
  }
  return HoldsInside(value, base);
}

// The keywords of the value's type.
absl::StatusOr<bool> Compiler::HoldsInside(const JsonValue& value, const Base& base) {
  const auto within = [](const Counts& counts, size_t size) {
    return size >= counts.min && (counts.max == kUnbounded || size <= counts.max);
  };
  if (value.is_number()) {
    if (!HasAny(base, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}))
      return true;
    MILLRACE_ASSIGN_OR_RETURN(const GrammarNode node, CompileNumber(base, kInteger | kFraction));
    const Regular* term = builder_.AsTerm(node);
    if (term != nullptr && pool_.Matches(*term, value.text)) return true;
    // Exactly, where the grammar of numbers has fewer digits.
    MILLRACE_ASSIGN_OR_RETURN(const NumberBounds bounds, Bounds(reader_, base));
    const auto decimal = ParseDecimal(value.text);
    if (!decimal) return false;
    if (bounds.least && Compare(*decimal, *bounds.least) < (bounds.above_least ? 1 : 0)) {
      return false;
    }
    if (bounds.most && Compare(*decimal, *bounds.most) > (bounds.below_most ? -1 : 0)) return false;
    for (const JsonValue* schema : base) {
      const JsonValue* divisor = schema->Find("multipleOf");
      if (divisor == nullptr) continue;
      const auto by = ParseDecimal(divisor->text);
      const auto multiples = by ? json_.MultipleOf(*by, {}, false) : std::nullopt;
      if (!multiples || !pool_.Matches(*multiples, decimal->ToString())) return false;
    }
    return true;
  }
  if (value.is_string()) {
    if (IsAnyString(base)) return true;
    MILLRACE_ASSIGN_OR_RETURN(const Regular term, StringTerm(base));
    std::string inside;
    AppendJsonString(value.text, &inside);
    return pool_.Matches(term, std::string_view(inside).substr(1, inside.size() - 2));
  }
  if (value.is_array()) {
    MILLRACE_ASSIGN_OR_RETURN(const Counts counts, CountsOf(base, "minItems", "maxItems"));
    if (!within(counts, value.items.size())) return false;
    if (IsUnique(base) && HasEqualItems(value)) return false;
    for (size_t i = 0; i < value.items.size(); ++i) {
      Conjunction schemas;
      reader_.AddItem(base, i, &schemas);
      MILLRACE_ASSIGN_OR_RETURN(const bool holds, Holds(value.items[i], schemas));
      if (!holds) return false;
    }
  }
  if (value.is_object()) {
    MILLRACE_ASSIGN_OR_RETURN(const Counts counts,
                              CountsOf(base, "minProperties", "maxProperties"));
    if (!within(counts, value.members.size())) return false;
    MILLRACE_ASSIGN_OR_RETURN(const std::optional<Regular> keys, KeyTerm(base));
    for (const auto& [name, member] : value.members) {
      MILLRACE_ASSIGN_OR_RETURN(const Conjunction schemas, PropertySchemas(base, name));
      MILLRACE_ASSIGN_OR_RETURN(const bool holds, Holds(member, schemas));
      std::string inside;
      AppendJsonString(name, &inside);
      if (!holds || (keys && !pool_.Matches(*keys, inside.substr(1, inside.size() - 2)))) {
        return false;
      }
    }
    for (const JsonValue* schema : base) {
      const JsonValue* list = schema->Find("required");
      if (list == nullptr) continue;
      for (const JsonValue& name : list->items) {
        if (value.Find(name.text) == nullptr) return false;
      }
    }
  }
  return true;
}

absl::StatusOr<bool> Compiler::Disjoint(const Conjunction& a, const Conjunction& b, int depth) {
  MILLRACE_RETURN_IF_ERROR(builder_.Check());
  MILLRACE_ASSIGN_OR_RETURN(const Flat first, reader_.Flatten(a));
  MILLRACE_ASSIGN_OR_RETURN(const Flat second, reader_.Flatten(b));
  if (first.never || second.never) return true;
  MILLRACE_ASSIGN_OR_RETURN(const bool disjoint, DisjointBases(first.base, second.base, depth));
  if (disjoint || depth == 0) return disjoint;
  // An alternative is apart from the other side if each of its branches is.
  for (const auto& [own, other] : {std::pair(&first, &b), std::pair(&second, &a)}) {
    if (own->alternatives.empty()) continue;
    bool all = true;
    for (const JsonValue& branch : own->alternatives[0].value->items) {
      Conjunction chosen;
      for (const JsonValue* schema : own->base) chosen.push_back({Part::Kind::kBase, schema});
      chosen.push_back({Part::Kind::kSchema, &branch});
      MILLRACE_ASSIGN_OR_RETURN(const bool apart, Disjoint(chosen, *other, depth - 1));
      all = all && apart;
      if (!all) break;
    }
    if (all) return true;
  }
  return false;
}

absl::StatusOr<bool> Compiler::DisjointBases(const Base& a, const Base& b, int depth) {
  Base both = a;
  both.insert(both.end(), b.begin(), b.end());
  if (const auto values = EnumOf(both)) {
    bool none = true;
    for (const JsonValue& value : *values) {
      MILLRACE_ASSIGN_OR_RETURN(const bool holds, HoldsBase(value, both));
      none = none && !holds;
    }
    return none;
  }
  MILLRACE_ASSIGN_OR_RETURN(const uint32_t types, Types(both));
  if (types == 0) return true;
  if ((types & ~(kObject | kString | kInteger | kFraction)) != 0) return false;
  if ((types & kString) != 0) {
    MILLRACE_ASSIGN_OR_RETURN(const Regular term, StringTerm(both));
    if (!pool_.IsEmpty(term)) return false;
  }
  if ((types & (kInteger | kFraction)) != 0) {
    MILLRACE_ASSIGN_OR_RETURN(const NumberBounds bounds, Bounds(reader_, both));
    if (!bounds.least || !bounds.most) return false;
    const int order = Compare(*bounds.least, *bounds.most);
    if (order < 0 || (order == 0 && !bounds.above_least && !bounds.below_most)) return false;
  }
  if ((types & kObject) == 0) return true;
  if (depth == 0) return false;
  // A property that one side demands, and of which they have no value in common.
  std::set<std::string_view> names;
  for (const JsonValue* schema : both) {
    if (const JsonValue* list = schema->Find("required")) {
      for (const JsonValue& name : list->items) names.insert(name.text);
    }
  }
  for (const std::string_view name : names) {
    if (!Requires(both, name)) continue;
    MILLRACE_ASSIGN_OR_RETURN(const Conjunction first, PropertySchemas(a, name));
    MILLRACE_ASSIGN_OR_RETURN(const Conjunction second, PropertySchemas(b, name));
    MILLRACE_ASSIGN_OR_RETURN(const bool disjoint, Disjoint(first, second, depth - 1));
    if (disjoint) return true;
  }
  return false;
}

}  // namespace millrace::schema
