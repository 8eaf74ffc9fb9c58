// The methods of strings, dicts and lists, as Python has them, and those of a loop.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "text/jinja/builtin.h"
#include "text/jinja/format.h"
#include "text/jinja/operators.h"

namespace millrace::jinja {
namespace {

using Args = absl::Span<const Value>;

// Makes a method of a function that takes the receiver's text; reading it is paid for.
template <absl::StatusOr<Value> (*kMethod)(Budget&, std::string_view, Args)>
absl::StatusOr<Value> OfString(CallContext& context, const Value& self, Args args) {
  MILLRACE_RETURN_IF_ERROR(context.budget.SpendText(self.string()->size()));
  return kMethod(context.budget, *self.string(), args);
}

template <absl::StatusOr<Value> (*kMethod)(Budget&, const Dict&, Args)>
absl::StatusOr<Value> OfDict(CallContext& context, const Value& self, Args args) {
  return kMethod(context.budget, *self.dict(), args);
}

template <std::string (*kMap)(std::string_view)>
absl::StatusOr<Value> Map(Budget& budget, std::string_view text, Args) {
  return MakeText(budget, kMap(text));
}

template <Side kSide>
absl::StatusOr<Value> Strip(Budget& budget, std::string_view text, Args args) {
  return StripText(budget, text, args[0], kSide);
}

template <bool kFromRight>
absl::StatusOr<Value> SplitMethod(Budget& budget, std::string_view text, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const int64_t most, IntegerArgument("maxsplit", args[1]));
  if (args[0].Is<None>()) {
    return MakeTexts(budget, kFromRight ? SplitSpaceRight(text, most) : SplitSpace(text, most));
  }
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view separator, StringArgument("sep", args[0]));
  if (separator.empty()) return absl::InvalidArgumentError("the separator of split() is empty");
  return MakeTexts(budget,
                   kFromRight ? SplitRight(text, separator, most) : Split(text, separator, most));
}

absl::StatusOr<Value> SplitLinesMethod(Budget& budget, std::string_view text, Args args) {
  std::vector<std::string_view> lines = SplitLines(text);
  const bool keep_ends = Truthy(args[0]);
  for (size_t i = 0; keep_ends && i < lines.size(); ++i) {
    const char* const end = i + 1 < lines.size() ? lines[i + 1].data() : text.data() + text.size();
    lines[i] = {lines[i].data(), static_cast<size_t>(end - lines[i].data())};
  }
  return MakeTexts(budget, lines);
}

// The part of a text that the arguments start and end of a method choose.
struct Part {
  std::string_view text;
  int64_t begin = 0;  // In code points.
};
// Nothing where it would begin after the text or after its own end.
absl::StatusOr<std::optional<Part>> PartOf(std::string_view text, const Value& start,
                                           const Value& end) {
  if (start.Is<None>() && end.Is<None>()) return Part{text, 0};
  const auto size = static_cast<int64_t>(CountCodePoints(text));
  int64_t bounds[] = {0, size};
  for (const auto& [value, bound] : {std::pair(&start, &bounds[0]), {&end, &bounds[1]}}) {
    if (value->Is<None>()) continue;
    MILLRACE_ASSIGN_OR_RETURN(const int64_t given, IntegerArgument("start or end", *value));
    *bound = given < 0 ? std::max<int64_t>(given + size, 0) : given;
  }
  bounds[1] = std::min(bounds[1], size);
  if (bounds[0] > bounds[1]) return std::nullopt;
  return Part{CodePointRange(text, static_cast<size_t>(bounds[0]), static_cast<size_t>(bounds[1])),
              bounds[0]};
}

template <bool (*kMatches)(std::string_view, std::string_view)>
absl::StatusOr<Value> Affix(Budget& budget, std::string_view whole, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const std::optional<Part> part, PartOf(whole, args[1], args[2]));
  if (!part) return Value(false);
  const std::string_view text = part->text;
  const List* choices = args[0].list();
  if (choices == nullptr || choices->kind != ListKind::kTuple) {
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view affix, StringArgument("prefix", args[0]));
    return Value(kMatches(text, affix));
  }
  for (const Value& choice : choices->items) {
    MILLRACE_RETURN_IF_ERROR(budget.Spend(1));
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view affix, StringArgument("prefix", choice));
    if (kMatches(text, affix)) return Value(true);
  }
  return Value(false);
}

bool StartsWith(std::string_view text, std::string_view prefix) { return text.starts_with(prefix); }
bool EndsWith(std::string_view text, std::string_view suffix) { return text.ends_with(suffix); }

absl::StatusOr<Value> RemovePrefix(Budget& budget, std::string_view text, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view prefix, StringArgument("prefix", args[0]));
  if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  return MakeText(budget, std::string(text));
}

absl::StatusOr<Value> RemoveSuffix(Budget& budget, std::string_view text, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view suffix, StringArgument("suffix", args[0]));
  if (text.ends_with(suffix)) text.remove_suffix(suffix.size());
  return MakeText(budget, std::string(text));
}

absl::StatusOr<Value> Replace(Budget& budget, std::string_view text, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view from, StringArgument("old", args[0]));
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view to, StringArgument("new", args[1]));
  MILLRACE_ASSIGN_OR_RETURN(const int64_t count, IntegerArgument("count", args[2]));
  return ReplaceText(budget, text, from, to, count);
}

// The offset in bytes of the first or last occurrence, or npos.
template <bool kLast>
size_t Locate(std::string_view text, std::string_view needle) {
  if (!kLast) return FindText(text, needle);
  const std::string_view last = SplitRight(text, needle, 1).back();
  return last.size() == text.size() ? std::string_view::npos
                                    : text.size() - last.size() - needle.size();
}

// find and rfind; index and rindex, which must find something.
template <bool kLast, bool kMustFind>
absl::StatusOr<Value> Find(Budget&, std::string_view text, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view needle, StringArgument("sub", args[0]));
  MILLRACE_ASSIGN_OR_RETURN(const std::optional<Part> part, PartOf(text, args[1], args[2]));
  size_t at = std::string_view::npos;
  if (part && needle.empty()) {
    at = kLast ? part->text.size() : 0;
  } else if (part) {
    at = Locate<kLast>(part->text, needle);
  }
  if (at != std::string_view::npos) {
    return Value(part->begin + static_cast<int64_t>(CountCodePoints(part->text.substr(0, at))));
  }
  if (kMustFind) return absl::InvalidArgumentError("index() has found nothing");
  return Value(int64_t{-1});
}

// partition and rpartition: what is before the separator, it, and what is after it.
template <bool kLast>
absl::StatusOr<Value> Partition(Budget& budget, std::string_view text, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view separator, StringArgument("sep", args[0]));
  if (separator.empty()) return absl::InvalidArgumentError("the separator is empty");
  const size_t at = Locate<kLast>(text, separator);
  std::vector<Value> parts;
  if (at == std::string_view::npos) {
    parts = kLast ? std::vector<Value>{"", "", text} : std::vector<Value>{text, "", ""};
  } else {
    parts = {text.substr(0, at), separator, text.substr(at + separator.size())};
  }
  return MakeList(budget, std::move(parts), ListKind::kTuple);
}

template <CharClass kClass>
absl::StatusOr<Value> Is(Budget&, std::string_view text, Args) {
  return Value(IsAll(text, kClass));
}

template <bool kUpper>
absl::StatusOr<Value> IsCase(Budget&, std::string_view text, Args) {
  return Value(HasCase(text, kUpper));
}

absl::StatusOr<Value> Format(Budget& budget, std::string_view text, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(std::string result,
                            FormatFields(budget, text, *args[0].list(), *args[1].dict()));
  return Value(std::move(result));
}

template <Side kSide>
absl::StatusOr<Value> Pad(Budget& budget, std::string_view text, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const int64_t width, IntegerArgument("width", args[0]));
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view fill, StringArgument("fillchar", args[1]));
  if (CountCodePoints(fill) != 1) {
    return absl::InvalidArgumentError("the argument 'fillchar' is not one character");
  }
  return PadText(budget, text, width, fill, kSide);
}

// Zeros between the sign and the rest.
absl::StatusOr<Value> ZeroFill(Budget& budget, std::string_view text, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(int64_t width, IntegerArgument("width", args[0]));
  const size_t sign = text.starts_with('+') || text.starts_with('-') ? 1 : 0;
  if (width > 0) width -= static_cast<int64_t>(sign);
  MILLRACE_ASSIGN_OR_RETURN(const Value filled,
                            PadText(budget, text.substr(sign), width, "0", Side::kLeft));
  return MakeText(budget, std::string(text.substr(0, sign)) + *filled.string());
}

absl::StatusOr<Value> IsAscii(Budget&, std::string_view text, Args) {
  return Value(std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; }));
}

absl::StatusOr<Value> Count(Budget&, std::string_view whole, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view needle, StringArgument("sub", args[0]));
  MILLRACE_ASSIGN_OR_RETURN(const std::optional<Part> part, PartOf(whole, args[1], args[2]));
  if (!part) return Value(int64_t{0});
  const std::string_view text = part->text;
  if (needle.empty()) return Value(static_cast<int64_t>(CountCodePoints(text) + 1));
  return Value(static_cast<int64_t>(Split(text, needle, -1).size() - 1));
}

absl::StatusOr<Value> Join(Budget& budget, std::string_view separator, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(budget, args[0]));
  std::string result;
  for (const Value& item : items->items) {
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view text, StringArgument("iterable", item));
    if (&item != &items->items.front()) result += separator;
    result += text;
    MILLRACE_RETURN_IF_ERROR(budget.SpendText(separator.size() + text.size()));
    if (result.size() > budget.limits().max_output_bytes) break;
  }
  return MakeText(budget, std::move(result));
}

absl::StatusOr<Value> Items(Budget& budget, const Dict& dict, Args) {
  return DictItems(budget, dict);
}

absl::StatusOr<Value> Keys(Budget& budget, const Dict& dict, Args) {
  std::vector<Value> keys;
  for (const auto& [key, value] : dict.items) keys.push_back(key);
  MILLRACE_RETURN_IF_ERROR(budget.Spend(keys.size()));
  return MakeList(budget, std::move(keys));
}

absl::StatusOr<Value> Values(Budget& budget, const Dict& dict, Args) {
  std::vector<Value> values;
  for (const auto& [key, value] : dict.items) values.push_back(value);
  MILLRACE_RETURN_IF_ERROR(budget.Spend(values.size()));
  return MakeList(budget, std::move(values));
}

absl::StatusOr<Value> Get(Budget& budget, const Dict& dict, Args args) {
  MILLRACE_RETURN_IF_ERROR(CheckKey(args[0]));
  MILLRACE_ASSIGN_OR_RETURN(const Value* found, FindKey(budget, dict, args[0]));
  return found == nullptr ? args[1] : *found;
}

absl::StatusOr<Value> Copy(CallContext&, const Value& self, Args) { return self; }

absl::StatusOr<Value> CountItem(CallContext& context, const Value& self, Args args) {
  int64_t count = 0;
  for (const Value& item : self.list()->items) {
    MILLRACE_ASSIGN_OR_RETURN(const bool equal, Equal(context.budget, item, args[0]));
    count += equal ? 1 : 0;
  }
  return Value(count);
}

absl::StatusOr<Value> IndexOfItem(CallContext& context, const Value& self, Args args) {
  const std::vector<Value>& items = self.list()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    MILLRACE_ASSIGN_OR_RETURN(const bool equal, Equal(context.budget, items[i], args[0]));
    if (equal) return Value(static_cast<int64_t>(i));
  }
  return absl::InvalidArgumentError("index() has found nothing");
}

absl::StatusOr<Value> Cycle(CallContext&, const Value& self, Args args) {
  MILLRACE_RETURN_IF_ERROR(CheckUnnamed(args[1]));
  const std::vector<Value>& values = args[0].list()->items;
  if (values.empty()) return absl::InvalidArgumentError("loop.cycle() needs an argument");
  return values[self.loop()->index0 % values.size()];
}

absl::StatusOr<Value> Changed(CallContext& context, const Value& self, Args args) {
  MILLRACE_RETURN_IF_ERROR(CheckUnnamed(args[1]));
  std::optional<Value>& last = self.loop()->last_changed;
  if (last) {
    MILLRACE_ASSIGN_OR_RETURN(const bool equal, Equal(context.budget, *last, args[0]));
    if (equal) return Value(false);
  }
  last = args[0];
  return Value(true);
}

}  // namespace

const Builtin* FindMethod(const Value& object, std::string_view name) {
  static const auto& strings = *[] {
    const Parameter characters = {"chars", false, None()};
    const Parameter separator = {"sep", false, None()};
    const Parameter start = {"start", false, None()};
    const Parameter end = {"end", false, None()};
    const std::vector<Parameter> sub = {{"sub", true}, start, end};
    const std::vector<Parameter> pad = {{"width", true}, {"fillchar", false, " "}};
    const Parameter most = {"maxsplit", false, int64_t{-1}};
    return new std::vector<Builtin>{
        {"capitalize", {}, OfString<Map<Capitalize>>},
        {"center", pad, OfString<Pad<Side::kBoth>>},
        {"count", sub, OfString<Count>},
        {"endswith", {{"suffix", true}, start, end}, OfString<Affix<EndsWith>>},
        {"find", sub, OfString<Find<false, false>>},
        {"format", {}, OfString<Format>, /*variadic=*/true},
        {"index", sub, OfString<Find<false, true>>},
        {"isalnum", {}, OfString<Is<CharClass::kAlnum>>},
        {"isalpha", {}, OfString<Is<CharClass::kAlpha>>},
        {"isascii", {}, OfString<IsAscii>},
        {"isdecimal", {}, OfString<Is<CharClass::kDigit>>},
        {"isdigit", {}, OfString<Is<CharClass::kDigit>>},
        {"islower", {}, OfString<IsCase<false>>},
        {"isnumeric", {}, OfString<Is<CharClass::kDigit>>},
        {"isspace", {}, OfString<Is<CharClass::kSpace>>},
        {"isupper", {}, OfString<IsCase<true>>},
        {"join", {{"iterable", true}}, OfString<Join>},
        {"ljust", pad, OfString<Pad<Side::kRight>>},
        {"lower", {}, OfString<Map<Lower>>},
        {"lstrip", {characters}, OfString<Strip<Side::kLeft>>},
        {"partition", {{"sep", true}}, OfString<Partition<false>>},
        {"removeprefix", {{"prefix", true}}, OfString<RemovePrefix>},
        {"removesuffix", {{"suffix", true}}, OfString<RemoveSuffix>},
        {"replace",
         {{"old", true}, {"new", true}, {"count", false, int64_t{-1}}},
         OfString<Replace>},
        {"rfind", sub, OfString<Find<true, false>>},
        {"rindex", sub, OfString<Find<true, true>>},
        {"rjust", pad, OfString<Pad<Side::kLeft>>},
        {"rpartition", {{"sep", true}}, OfString<Partition<true>>},
        {"rsplit", {separator, most}, OfString<SplitMethod<true>>},
        {"rstrip", {characters}, OfString<Strip<Side::kRight>>},
        {"split", {separator, most}, OfString<SplitMethod<false>>},
        {"splitlines", {{"keepends", false, false}}, OfString<SplitLinesMethod>},
        {"startswith", {{"prefix", true}, start, end}, OfString<Affix<StartsWith>>},
        {"strip", {characters}, OfString<Strip<Side::kBoth>>},
        {"title", {}, OfString<Map<TitleLetters>>},
        {"upper", {}, OfString<Map<Upper>>},
        {"zfill", {{"width", true}}, OfString<ZeroFill>},
    };
  }();
  static const auto& dicts = *new std::vector<Builtin>{
      {"copy", {}, Copy},
      {"get", {{"key", true}, {"default", false, None()}}, OfDict<Get>},
      {"items", {}, OfDict<Items>},
      {"keys", {}, OfDict<Keys>},
      {"values", {}, OfDict<Values>},
  };
  static const auto& lists = *new std::vector<Builtin>{
      {"copy", {}, Copy},
      {"count", {{"value", true}}, CountItem},
      {"index", {{"value", true}}, IndexOfItem},
  };
  static const auto& loops = *new std::vector<Builtin>{
      {"changed", {}, Changed, /*variadic=*/true},
      {"cycle", {}, Cycle, /*variadic=*/true},
  };
  if (object.string() != nullptr) return FindIn(strings, name);
  if (object.dict() != nullptr) return FindIn(dicts, name);
  if (object.list() != nullptr) return FindIn(lists, name);
  return object.loop() != nullptr ? FindIn(loops, name) : nullptr;
}

}  // namespace millrace::jinja
