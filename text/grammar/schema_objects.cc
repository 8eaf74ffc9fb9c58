// Objects: declared properties in their order, then the others.
#include <algorithm>

#include "base/status.h"
#include "base/strings.h"
#include "text/grammar/regex_parser.h"
#include "text/grammar/schema_compiler.h"

namespace millrace::schema {
namespace {

constexpr size_t kMostClasses = 6;        // patterns of an object that other properties may match
constexpr uint64_t kMostCounted = 50000;  // properties times counts

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

}  // namespace

// Returns the term of the keys that propertyNames allow; nothing if any is.
absl::StatusOr<std::optional<Regular>> Compiler::KeyTerm(const Base& base) {
  Conjunction names;
  for (const JsonValue* schema : base) {
    if (const JsonValue* own = schema->Find("propertyNames")) {
      names.push_back({Part::Kind::kSchema, own});
    }
  }
  if (names.empty()) return std::optional<Regular>();
  MILLRACE_ASSIGN_OR_RETURN(const Flat flat, reader_.Flatten(names));
  if (flat.never) return std::optional(kNothing);
  if (!flat.alternatives.empty()) {
    return reader_.Refuse(*base.front(), "propertyNames", "alternatives in it are not supported");
  }
  MILLRACE_ASSIGN_OR_RETURN(const uint32_t types, Types(flat.base));
  if ((types & kString) == 0) return std::optional(kNothing);
  if (const auto values = EnumOf(flat.base)) {
    std::vector<Regular> keys;
    for (const JsonValue& value : *values) {
      if (!value.is_string()) continue;
      MILLRACE_ASSIGN_OR_RETURN(const bool holds, HoldsBase(value, flat.base));
      if (holds) keys.push_back(EncodeLiteral(pool_, value.text, TextForm::kJsonString));
    }
    return std::optional(pool_.Alt(keys));
  }
  if (IsAnyString(flat.base)) return std::optional<Regular>();
  MILLRACE_ASSIGN_OR_RETURN(const Regular term, StringTerm(flat.base));
  return std::optional(term);
}

absl::StatusOr<Conjunction> Compiler::PropertySchemas(const Base& base, std::string_view name) {
  std::string inside;
  AppendJsonString(name, &inside);
  inside = inside.substr(1, inside.size() - 2);
  std::set<std::string_view> matching;
  for (const JsonValue* schema : base) {
    const JsonValue* patterns = schema->Find("patternProperties");
    if (patterns == nullptr) continue;
    for (const auto& [pattern, own] : patterns->members) {
      MILLRACE_ASSIGN_OR_RETURN(const std::optional<Regular> term,
                                Pattern(*schema, "patternProperties", pattern));
      if (term && pool_.Matches(*term, inside)) matching.insert(pattern);
    }
  }
  Conjunction schemas;
  reader_.AddProperty(base, name, matching, &schemas);
  return schemas;
}

bool Compiler::IsClosed(const Base& base, size_t declared, const Counts& counts) const {
  if (!closed_ || counts.min > declared) return false;
  bool lists = false;
  for (const JsonValue* schema : base) {
    for (const char* opening : {"additionalProperties", "propertyNames", "unevaluatedProperties"}) {
      if (schema->Find(opening) != nullptr) return false;
    }
    const JsonValue* properties = schema->Find("properties");
    // Those of a negation say what must not be there.
    const bool forbids =
        properties != nullptr && !properties->members.empty() &&
        std::all_of(properties->members.begin(), properties->members.end(),
                    [](const auto& one) { return one.second.type == JsonValue::Type::kFalse; });
    lists = lists || (properties != nullptr && !forbids) ||
            schema->Find("patternProperties") != nullptr;
  }
  return lists;
}

// The members that no schema declares, by which of the patterns their keys match.
absl::StatusOr<GrammarNode> Compiler::Additional(const Base& base,
                                                 const std::vector<std::string_view>& declared,
                                                 bool closed, bool arguments) {
  std::vector<std::pair<std::string_view, Regular>> patterns;
  for (const JsonValue* schema : base) {
    const JsonValue* own = schema->Find("patternProperties");
    if (own == nullptr) continue;
    for (const auto& [pattern, unused] : own->members) {
      MILLRACE_ASSIGN_OR_RETURN(const std::optional<Regular> term,
                                Pattern(*schema, "patternProperties", pattern));
      const bool known = std::any_of(patterns.begin(), patterns.end(),
                                     [&name = pattern](const auto& p) { return p.first == name; });
      if (!known && term) patterns.emplace_back(pattern, *term);
    }
    if (patterns.size() > kMostClasses) {
      return reader_.Refuse(*schema, "patternProperties",
                            StrCat("an object has more than ", kMostClasses, " patterns"));
    }
  }
  MILLRACE_ASSIGN_OR_RETURN(const std::optional<Regular> allowed, KeyTerm(base));
  std::vector<std::string> keys;
  for (const std::string_view name : declared) {
    AppendJsonString(name, &keys.emplace_back());
    keys.back() = keys.back().substr(1, keys.back().size() - 2);
  }
  const bool all_ascii = std::all_of(declared.begin(), declared.end(), IsAscii);
  const Regular others = pool_.Not(pool_.OneOf({keys.begin(), keys.end()}));
  Regular any = AnyText(pool_, TextForm::kJsonString);
  // Escaped characters beyond ASCII are in no key that is ASCII.
  if (patterns.empty() && !allowed && all_ascii) any = json_.AnyKey();
  const bool bare = arguments || IsGemma(json_.notation());
  if (bare) any = json_.AnyName();
  std::vector<GrammarNode> members;
  for (size_t set = closed ? 1 : 0; set < size_t{1} << patterns.size(); ++set) {
    std::set<std::string_view> matching;
    std::vector<Regular> key = {any};
    if (!keys.empty()) key.push_back(others);
    if (allowed) key.push_back(*allowed);
    for (size_t i = 0; i < patterns.size(); ++i) {
      const bool matches = (set >> i & 1) != 0;
      if (matches) matching.insert(patterns[i].first);
      key.push_back(matches ? patterns[i].second : pool_.Not(patterns[i].second));
    }
    Conjunction schemas;
    reader_.AddProperty(base, std::nullopt, matching, &schemas);
    GrammarNode value = json_.AnyValue();
    if (!schemas.empty()) {
      MILLRACE_ASSIGN_OR_RETURN(value, Compile(schemas));
    }
    const Regular* term = builder_.AsTerm(value);
    if (term != nullptr && *term == kNothing) continue;
    MILLRACE_RETURN_IF_ERROR(builder_.Check());
    const GrammarNode written =
        bare ? builder_.Term(pool_.And(key)) : json_.StringOf(pool_.And(key));
    members.push_back(builder_.Sequence({written, json_.colon(arguments), value}));
  }
  return builder_.Alternative(members);
}

// From the last member to the first: what may follow so many of them, with and without a member
// before. Where properties are counted, there is one such place for each count.
absl::StatusOr<GrammarNode> Compiler::Members(const Base& base, const std::vector<Member>& members,
                                              GrammarNode additional, const Counts& counts) {
  const GrammarNode nothing = builder_.Term(kNothing), empty = builder_.Term(kEmptyText);
  const bool none_additional = additional == nothing;
  const auto required = static_cast<uint32_t>(std::count_if(
      members.begin(), members.end(), [](const Member& member) { return member.required; }));
  const auto all = static_cast<uint32_t>(members.size());
  const bool count_most = counts.max != kUnbounded && !(none_additional && counts.max >= all);
  const bool count_least = counts.min > required && counts.min > 1;
  const bool counted = count_most || count_least;
  const uint32_t most = !counted ? 0 : std::min(counts.max, std::max(counts.min, all));
  if (uint64_t{most} * (all + 1) > kMostCounted) {
    return reader_.Refuse(*base.front(), count_most ? "maxProperties" : "minProperties",
                          "of so many properties it is not supported");
  }
  // A key that comes twice counts once, so that of the others only the first counts for sure.
  if (counts.min > all + (none_additional ? 0 : 1)) {
    if (none_additional) return nothing;
    return reader_.Refuse(*base.front(), "minProperties",
                          StrCat("it is ", counts.min,
                                 ", which is supported up to one more than "
                                 "the properties that are declared, ",
                                 all));
  }
  const GrammarNode again = builder_.Sequence({json_.comma(), additional});
  // after[c]: c members were written, or, uncounted, [0]: none and [1]: some.
  std::vector<GrammarNode> after(counted ? most + 1 : 2);
  for (uint32_t c = 0; c < after.size(); ++c) {
    const uint32_t left = !counted || counts.max == kUnbounded ? kUnbounded : counts.max - c;
    const uint32_t lacking = counted ? counts.min - std::min(counts.min, c)
                                     : (c == 0 && counts.min == 1 && required == 0 ? 1 : 0);
    if (lacking > 1 || (left == 0 && lacking > 0)) {
      after[c] = nothing;
    } else if (left == 0 || none_additional) {
      after[c] = lacking == 0 ? empty : nothing;
    } else if (c > 0) {
      after[c] = builder_.Repeat(again, lacking, left);
    } else {
      after[c] = builder_.Sequence(
          {additional, builder_.Repeat(again, 0, left == kUnbounded ? left : left - 1)});
      if (lacking == 0) after[c] = builder_.Optional(after[c]);
    }
  }
  for (size_t i = members.size(); i-- > 0;) {
    MILLRACE_RETURN_IF_ERROR(builder_.Check());
    std::vector<GrammarNode> before(after.size());
    for (uint32_t c = 0; c < after.size(); ++c) {
      const uint32_t next = counted ? c + 1 : 1;
      std::vector<GrammarNode> ways;
      if (next < after.size()) {
        ways.push_back(c == 0 ? builder_.Sequence({members[i].node, after[next]})
                              : builder_.Sequence({json_.comma(), members[i].node, after[next]}));
      }
      if (!members[i].required) ways.push_back(after[c]);
      before[c] = builder_.Alternative(ways);
    }
    after = std::move(before);
  }
  return after[0];
}

GrammarNode Compiler::Key(std::string_view name, bool arguments) {
  const bool bare = arguments || IsGemma(json_.notation());
  const GrammarNode key = bare ? builder_.Literal(name) : builder_.Term(json_.QuotedLiteral(name));
  return builder_.Sequence({key, json_.colon(arguments)});
}

absl::StatusOr<GrammarNode> Compiler::CompileObject(const Base& base, bool arguments) {
  std::vector<std::string_view> names;
  absl::flat_hash_set<std::string_view> known, required;
  const auto declare = [&](std::string_view name) {
    if (known.insert(name).second) names.push_back(name);
  };
  for (const JsonValue* schema : base) {
    if (const JsonValue* properties = schema->Find("properties")) {
      for (const auto& [name, own] : properties->members) declare(name);
    }
  }
  for (const JsonValue* schema : base) {
    if (const JsonValue* list = schema->Find("required")) {
      for (const JsonValue& name : list->items) {
        declare(name.text);
        required.insert(name.text);
      }
    }
  }
  MILLRACE_ASSIGN_OR_RETURN(const Counts counts, CountsOf(base, "minProperties", "maxProperties"));
  if (counts.max < counts.min || counts.max < required.size()) return builder_.Term(kNothing);
  MILLRACE_ASSIGN_OR_RETURN(const std::optional<Regular> allowed, KeyTerm(base));

  std::vector<Member> members;
  for (const std::string_view name : names) {
    const bool needed = required.contains(name);
    MILLRACE_ASSIGN_OR_RETURN(const Conjunction schemas, PropertySchemas(base, name));
    GrammarNode value = json_.AnyValue();
    if (!schemas.empty()) {
      MILLRACE_ASSIGN_OR_RETURN(value, Compile(schemas));
    }
    std::string inside;
    AppendJsonString(name, &inside);
    const bool key_allowed =
        !allowed || pool_.Matches(*allowed, inside.substr(1, inside.size() - 2));
    const Regular* term = builder_.AsTerm(value);
    if (!key_allowed || (term != nullptr && *term == kNothing)) {
      if (needed) return builder_.Term(kNothing);
      continue;  // it must not be there, and is none of the others either
    }
    members.push_back({builder_.Sequence({Key(name, arguments), value}), needed});
  }
  MILLRACE_ASSIGN_OR_RETURN(
      const GrammarNode additional,
      Additional(base, names, IsClosed(base, names.size(), counts), arguments));
  MILLRACE_ASSIGN_OR_RETURN(const GrammarNode inside, Members(base, members, additional, counts));
  return arguments ? inside : json_.Object(inside);
}

}  // namespace millrace::schema
