// The methods of strings and dicts, as Python has them.
#include <utility>

#include "base/status.h"
#include "server/text/jinja_builtin.h"

namespace millrace::jinja {
namespace {

using Args = absl::Span<const Value>;

// Makes a method of a function that takes the receiver's text; reading it is paid for.
template <absl::StatusOr<Value> (*kMethod)(Budget&, std::string_view, Args)>
absl::StatusOr<Value> OfString(CallContext& context, const Value& self, Args args) {
  if (self.string() == nullptr) return TypeError("call a string's method on", self);
  MILLRACE_RETURN_IF_ERROR(context.budget.SpendText(self.string()->size()));
  return kMethod(context.budget, *self.string(), args);
}

template <absl::StatusOr<Value> (*kMethod)(Budget&, const Dict&, Args)>
absl::StatusOr<Value> OfDict(CallContext& context, const Value& self, Args args) {
  if (self.dict() == nullptr) return TypeError("call a dict's method on", self);
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
    if (kFromRight && most >= 0) {
      return absl::InvalidArgumentError("rsplit() at white space with maxsplit is not supported");
    }
    return MakeTexts(budget, SplitSpace(text, most));
  }
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view separator, StringArgument("sep", args[0]));
  if (separator.empty()) return absl::InvalidArgumentError("the separator of split() is empty");
  return MakeTexts(budget,
                   kFromRight ? SplitRight(text, separator, most) : Split(text, separator, most));
}

absl::StatusOr<Value> SplitLinesMethod(Budget& budget, std::string_view text, Args) {
  return MakeTexts(budget, SplitLines(text));
}

template <bool (*kMatches)(std::string_view, std::string_view)>
absl::StatusOr<Value> Affix(Budget& budget, std::string_view text, Args args) {
  const List* choices = args[0].list();
  if (choices == nullptr || !choices->is_tuple) {
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

absl::StatusOr<Value> Find(Budget&, std::string_view text, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view needle, StringArgument("sub", args[0]));
  const size_t at = FindText(text, needle);
  if (at == std::string_view::npos) return Value(int64_t{-1});
  return Value(static_cast<int64_t>(CountCodePoints(text.substr(0, at))));
}

absl::StatusOr<Value> Count(Budget&, std::string_view text, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view needle, StringArgument("sub", args[0]));
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

}  // namespace

const Builtin* FindMethod(std::string_view name) {
  static const auto& table = *[] {
    const Parameter characters = {"chars", false, None()};
    const Parameter separator = {"sep", false, None()};
    const Parameter most = {"maxsplit", false, int64_t{-1}};
    return new std::vector<Builtin>{
        {"capitalize", {}, OfString<Map<Capitalize>>},
        {"count", {{"sub", true}}, OfString<Count>},
        {"endswith", {{"suffix", true}}, OfString<Affix<EndsWith>>},
        {"find", {{"sub", true}}, OfString<Find>},
        {"join", {{"iterable", true}}, OfString<Join>},
        {"lower", {}, OfString<Map<Lower>>},
        {"lstrip", {characters}, OfString<Strip<Side::kLeft>>},
        {"removeprefix", {{"prefix", true}}, OfString<RemovePrefix>},
        {"removesuffix", {{"suffix", true}}, OfString<RemoveSuffix>},
        {"replace",
         {{"old", true}, {"new", true}, {"count", false, int64_t{-1}}},
         OfString<Replace>},
        {"rsplit", {separator, most}, OfString<SplitMethod<true>>},
        {"rstrip", {characters}, OfString<Strip<Side::kRight>>},
        {"split", {separator, most}, OfString<SplitMethod<false>>},
        {"splitlines", {}, OfString<SplitLinesMethod>},
        {"startswith", {{"prefix", true}}, OfString<Affix<StartsWith>>},
        {"strip", {characters}, OfString<Strip<Side::kBoth>>},
        {"title", {}, OfString<Map<TitleLetters>>},
        {"upper", {}, OfString<Map<Upper>>},
        {"get", {{"key", true}, {"default", false, None()}}, OfDict<Get>},
        {"items", {}, OfDict<Items>},
        {"keys", {}, OfDict<Keys>},
        {"values", {}, OfDict<Values>},
    };
  }();
  return FindIn(table, name);
}

}  // namespace millrace::jinja
