// Strings and arrays.
#include <algorithm>
#include <bit>

#include "absl/container/flat_hash_set.h"
#include "base/status.h"
#include "base/strings.h"
#include "text/grammar/regex_parser.h"
#include "text/grammar/schema_compiler.h"
#include "text/grammar/string_formats.h"

namespace millrace::schema {

namespace {

constexpr size_t kMostUnique = 10;  // values, of each of which a list has one at most

// Returns whether a string is restricted in its length at most.
bool IsFree(const JsonValue& schema) {
  const JsonValue* format = schema.Find("format");
  const bool any_format =
      format == nullptr || (format->is_string() && FormatRegex(format->text) == std::string());
  return any_format && schema.Find("pattern") == nullptr &&
         schema.Find("\xffnotPattern") == nullptr && schema.Find("\xffnotEnum") == nullptr;
}

}  // namespace

bool Compiler::IsAnyString(const Base& base) {
  return std::all_of(base.begin(), base.end(), [](const JsonValue* schema) {
    return IsFree(*schema) && schema->Find("minLength") == nullptr &&
           schema->Find("maxLength") == nullptr;
  });
}

// The terms of the strings' insides, all of which must hold. None: lengths alone.
absl::StatusOr<Regular> Compiler::StringTerm(const Base& base, TextForm form) {
  std::vector<Regular> all;
  for (const JsonValue* schema : base) {
    for (const char* keyword : {"pattern", "\xffnotPattern"}) {
      const JsonValue* pattern = schema->Find(keyword);
      if (pattern == nullptr) continue;
      if (!pattern->is_string()) return reader_.Refuse(*schema, keyword, "it must be a string");
      MILLRACE_ASSIGN_OR_RETURN(const std::optional<Regular> term,
                                Pattern(*schema, "pattern", pattern->text, form));
      if (term) all.push_back(keyword[0] == 'p' ? *term : pool_.Not(*term));
    }
    if (const JsonValue* values = schema->Find("\xffnotEnum")) {
      for (const JsonValue& value : values->items) {
        if (!value.is_string()) continue;
        all.push_back(pool_.Not(EncodeLiteral(pool_, value.text, form)));
      }
    }
    const JsonValue* format = schema->Find("format");
    if (format == nullptr) continue;
    if (!format->is_string()) return reader_.Refuse(*schema, "format", "it must be a string");
    const auto regex = FormatRegex(format->text);
    if (!regex) {
      if (reader_.lenient()) continue;
      return reader_.Refuse(*schema, "format",
                            StrCat("\"", Printable(format->text, 64), "\" is not supported"));
    }
    if (regex->empty()) continue;
    MILLRACE_ASSIGN_OR_RETURN(const Regular term, ParseRegex(pool_, *regex, form, RegexMode::kWhole,
                                                             builder_.limits().depth));
    // The specification has format as an annotation. zod writes "format": "time" beside a pattern
    // without a time zone: where the two have no text in common, the pattern holds.
    const bool beside_pattern = schema->Find("pattern") != nullptr;
    if (beside_pattern && !all.empty() && pool_.IsEmpty(pool_.And({all.back(), term}))) continue;
    all.push_back(term);
  }
  MILLRACE_ASSIGN_OR_RETURN(const Counts length, CountsOf(base, "minLength", "maxLength"));
  const bool bounded = length.min > 0 || length.max != kUnbounded;
  const Regular character = EncodeSet(pool_, {{0, 0x10ffff}}, form);
  // A complement has texts that are no strings at all.
  if (bounded || all.empty() ||
      std::any_of(all.begin(), all.end(), [this](Regular t) { return pool_.IsBoolean(t); })) {
    all.push_back(pool_.Repeat(character, length.min, length.max));
  }
  return pool_.And(all);
}

absl::StatusOr<GrammarNode> Compiler::CompileString(const Base& base) {
  if (std::all_of(base.begin(), base.end(), [](const JsonValue* one) { return IsFree(*one); })) {
    MILLRACE_ASSIGN_OR_RETURN(const Counts length, CountsOf(base, "minLength", "maxLength"));
    return json_.String(length.min, length.max);
  }
  const TextForm form = IsGemma(json_.notation()) ? TextForm::kPlain : TextForm::kJsonString;
  MILLRACE_ASSIGN_OR_RETURN(const Regular term, StringTerm(base, form));
  return json_.StringOf(term);
}

// Returns the values that a conjunction has, if it is written so that there are few.
absl::StatusOr<std::optional<std::vector<JsonValue>>> Compiler::FewValues(
    const Conjunction& conjunction) {
  std::optional<std::vector<JsonValue>> values;
  MILLRACE_ASSIGN_OR_RETURN(const Flat flat, reader_.Flatten(conjunction));
  if (flat.never) return std::optional(std::vector<JsonValue>());
  if (!flat.alternatives.empty()) return values;
  std::optional<std::vector<JsonValue>> written = EnumOf(flat.base);
  if (!written) {
    MILLRACE_ASSIGN_OR_RETURN(const uint32_t types, Types(flat.base));
    if ((types & ~(kNull | kBoolean)) != 0) return values;
    using Type = JsonValue::Type;
    written = {{.type = Type::kNull}, {.type = Type::kTrue}, {.type = Type::kFalse}};
  }
  values.emplace();
  absl::flat_hash_set<std::string> known;
  for (const JsonValue& value : *written) {
    MILLRACE_ASSIGN_OR_RETURN(const bool holds, HoldsBase(value, flat.base));
    if (holds && known.insert(EqualKey(value)).second) values->push_back(value);
  }
  return values;
}

// A list without repetition is a walk through the sets of the values that it has had: what may
// follow each of the sets is one node.
absl::StatusOr<GrammarNode> Compiler::CompileUnique(const Base& base, const JsonValue& schema,
                                                    const Counts& counts) {
  Conjunction item;
  reader_.AddItem(base, 0, &item);
  std::optional<std::vector<JsonValue>> values;
  if (reader_.PrefixOf(base) == 0 && !item.empty()) {
    MILLRACE_ASSIGN_OR_RETURN(values, FewValues(item));
  }
  if (!values || values->size() > kMostUnique) {
    return reader_.Refuse(schema, "uniqueItems",
                          StrCat("it is enforced for items of an enum of at most ", kMostUnique,
                                 " values, booleans, null, and lists of one item"));
  }
  const size_t all = size_t{1} << values->size();
  std::vector<GrammarNode> constants;
  for (const JsonValue& value : *values) constants.push_back(json_.Constant(value));
  std::vector<GrammarNode> after(all);
  for (size_t had = all; had-- > 0;) {
    MILLRACE_RETURN_IF_ERROR(builder_.Check());
    const auto count = static_cast<uint32_t>(std::popcount(had));
    std::vector<GrammarNode> ways;
    if (count >= counts.min) ways.push_back(builder_.Term(kEmptyText));
    for (size_t i = 0; i < constants.size() && count < counts.max; ++i) {
      if ((had >> i & 1) != 0) continue;
      const GrammarNode next = after[had | size_t{1} << i];
      ways.push_back(had == 0 ? builder_.Sequence({constants[i], next})
                              : builder_.Sequence({json_.comma(), constants[i], next}));
    }
    after[had] = builder_.Alternative(ways);
  }
  return json_.Array(after[0]);
}

absl::StatusOr<GrammarNode> Compiler::CompileArray(const Base& base) {
  MILLRACE_ASSIGN_OR_RETURN(const Counts counts, CountsOf(base, "minItems", "maxItems"));
  if (counts.max < counts.min) return builder_.Term(kNothing);
  for (const JsonValue* schema : base) {
    const JsonValue* unique = schema->Find("uniqueItems");
    if (unique == nullptr || unique->type != JsonValue::Type::kTrue || counts.max <= 1) continue;
    return CompileUnique(base, *schema, counts);
  }
  size_t prefix = reader_.PrefixOf(base);
  std::vector<GrammarNode> items;
  for (size_t i = 0; i <= prefix; ++i) {
    Conjunction schemas;
    reader_.AddItem(base, i, &schemas);
    if (schemas.empty()) {
      items.push_back(json_.AnyValue());
      continue;
    }
    MILLRACE_ASSIGN_OR_RETURN(const GrammarNode item, Compile(schemas));
    items.push_back(item);
  }
  prefix = std::min<size_t>(prefix, counts.max);
  const auto used = static_cast<uint32_t>(prefix);
  // From the end: what follows so many items.
  const uint32_t left = counts.max == kUnbounded ? kUnbounded : counts.max - used;
  const uint32_t needed = counts.min - std::min(counts.min, used);
  const GrammarNode next = builder_.Sequence({json_.comma(), items.back()});
  GrammarNode rest;
  if (prefix > 0) {
    rest = builder_.Repeat(next, needed, left);
  } else if (left == 0) {
    rest = builder_.Term(kEmptyText);
  } else {
    rest = builder_.Sequence({items.back(), builder_.Repeat(next, needed == 0 ? 0 : needed - 1,
                                                            left == kUnbounded ? left : left - 1)});
    if (needed == 0) rest = builder_.Optional(rest);
  }
  for (size_t i = prefix; i-- > 0;) {
    rest = i == 0 ? builder_.Sequence({items[0], rest})
                  : builder_.Sequence({json_.comma(), items[i], rest});
    if (i >= counts.min) rest = builder_.Optional(rest);
  }
  return json_.Array(rest);
}

}  // namespace millrace::schema
