// Strings and arrays.
#include <algorithm>

#include "base/status.h"
#include "base/strings.h"
#include "text/grammar/regex_parser.h"
#include "text/grammar/schema_compiler.h"
#include "text/grammar/string_formats.h"

namespace millrace::schema {

// The terms of the strings' insides, all of which must hold. None: lengths alone.
absl::StatusOr<Regular> Compiler::StringTerm(const Base& base) {
  std::vector<Regular> all;
  for (const JsonValue* schema : base) {
    for (const char* keyword : {"pattern", "\x01notPattern"}) {
      const JsonValue* pattern = schema->Find(keyword);
      if (pattern == nullptr) continue;
      if (!pattern->is_string()) return reader_.Refuse(*schema, keyword, "it must be a string");
      MILLRACE_ASSIGN_OR_RETURN(const Regular term, Pattern(*schema, "pattern", pattern->text));
      all.push_back(keyword[0] == 'p' ? term : pool_.Not(term));
    }
    if (const JsonValue* values = schema->Find("\x01notEnum")) {
      for (const JsonValue& value : values->items) {
        if (!value.is_string()) continue;
        all.push_back(pool_.Not(EncodeLiteral(pool_, value.text, TextForm::kJsonString)));
      }
    }
    const JsonValue* format = schema->Find("format");
    if (format == nullptr) continue;
    if (!format->is_string()) return reader_.Refuse(*schema, "format", "it must be a string");
    const auto regex = FormatRegex(format->text);
    if (!regex) {
      return reader_.Refuse(*schema, "format",
                            StrCat("\"", Printable(format->text, 64), "\" is not supported"));
    }
    if (regex->empty()) continue;
    MILLRACE_ASSIGN_OR_RETURN(const Regular term,
                              ParseRegex(pool_, *regex, TextForm::kJsonString, RegexMode::kWhole,
                                         builder_.limits().depth));
    all.push_back(term);
  }
  MILLRACE_ASSIGN_OR_RETURN(const Counts length, CountsOf(base, "minLength", "maxLength"));
  const bool bounded = length.min > 0 || length.max != kUnbounded;
  const Regular character = EncodeSet(pool_, {{0, 0x10ffff}}, TextForm::kJsonString);
  // A complement has texts that are no strings at all.
  if (bounded || all.empty() ||
      std::any_of(all.begin(), all.end(), [this](Regular t) { return pool_.IsBoolean(t); })) {
    all.push_back(pool_.Repeat(character, length.min, length.max));
  }
  return pool_.And(all);
}

absl::StatusOr<GrammarNode> Compiler::CompileString(const Base& base) {
  const bool free = std::none_of(base.begin(), base.end(), [](const JsonValue* schema) {
    const JsonValue* format = schema->Find("format");
    const bool any_format =
        format == nullptr || (format->is_string() && FormatRegex(format->text) == std::string());
    return schema->Find("pattern") || schema->Find("\x01notPattern") ||
           schema->Find("\x01notEnum") || !any_format;
  });
  if (free) {
    MILLRACE_ASSIGN_OR_RETURN(const Counts length, CountsOf(base, "minLength", "maxLength"));
    return json_.String(length.min, length.max);
  }
  MILLRACE_ASSIGN_OR_RETURN(const Regular term, StringTerm(base));
  return json_.StringOf(term);
}

absl::StatusOr<GrammarNode> Compiler::CompileArray(const Base& base) {
  MILLRACE_ASSIGN_OR_RETURN(const Counts counts, CountsOf(base, "minItems", "maxItems"));
  if (counts.max < counts.min) return builder_.Term(kNothing);
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
