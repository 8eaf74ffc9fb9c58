#include "text/jinja/builtin.h"

#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "text/jinja/operators.h"

namespace millrace::jinja {
namespace {

using Args = absl::Span<const Value>;

absl::StatusOr<Value> RaiseException(CallContext& context, const Value&, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string message, ToText(context.budget, args[0]));
  return absl::InvalidArgumentError(message);
}

absl::StatusOr<Value> Range(CallContext& context, const Value&, Args args) {
  constexpr int64_t kMost = 100'000;  // As Jinja's sandbox has it.
  MILLRACE_ASSIGN_OR_RETURN(int64_t start, IntegerArgument("start", args[0]));
  int64_t stop = std::exchange(start, 0);
  int64_t step = 1;
  if (!args[1].Is<None>()) {
    start = stop;
    MILLRACE_ASSIGN_OR_RETURN(stop, IntegerArgument("stop", args[1]));
  }
  if (!args[2].Is<None>()) {
    MILLRACE_ASSIGN_OR_RETURN(step, IntegerArgument("step", args[2]));
  }
  if (step == 0) return absl::InvalidArgumentError("the step of range() must not be 0");
  if (start == stop || (start < stop) != (step > 0)) return MakeList(context.budget, {});
  // In unsigned arithmetic, where the distance of two int64 and the size of any step fit.
  const auto low = static_cast<uint64_t>(step > 0 ? start : stop);
  const auto high = static_cast<uint64_t>(step > 0 ? stop : start);
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : -static_cast<uint64_t>(step);
  const uint64_t count = (high - low - 1) / stride + 1;
  if (count > kMost) {
    return absl::InvalidArgumentError(StrCat("range() has more than ", kMost, " items"));
  }
  MILLRACE_RETURN_IF_ERROR(context.budget.Spend(count));
  std::vector<Value> items;
  items.reserve(count);
  for (uint64_t i = 0; i < count; ++i) items.emplace_back(start + static_cast<int64_t>(i) * step);
  return MakeList(context.budget, std::move(items));
}

// A namespace or a dict: of the items of a dict, which may come first, and the named arguments.
template <bool kIsNamespace>
absl::StatusOr<Value> MakeMapping(CallContext& context, const Value&, Args args) {
  std::vector<std::pair<Value, Value>> items;
  if (!args[0].Is<Undefined>()) {
    if (args[0].dict() == nullptr) return TypeError("take as a dict", args[0]);
    items = args[0].dict()->items;
  }
  const auto& named = args[2].dict()->items;
  items.insert(items.end(), named.begin(), named.end());
  MILLRACE_RETURN_IF_ERROR(context.budget.Spend(items.size()));
  if (!kIsNamespace) return MakeDict(context.budget, std::move(items));
  auto result = std::make_shared<Namespace>();
  for (const auto& [name, value] : items) {
    if (name.string() == nullptr) return TypeError("name an attribute by", name);
    MILLRACE_RETURN_IF_ERROR(SetAttribute(*result, *name.string(), value));
  }
  return result;
}

absl::StatusOr<Value> StrftimeNow(CallContext& context, const Value&, Args args) {
  constexpr std::string_view kDirectives = "aAbBcdeFHIjmMpSTUwWxXyYzZ%-";
  constexpr size_t kMostBytes = 256;
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view format, StringArgument("format", args[0]));
  if (format.size() > kMostBytes) {
    return absl::InvalidArgumentError(StrCat("the format is over ", kMostBytes, " bytes"));
  }
  for (size_t at = format.find('%'); at != format.npos; at = format.find('%', at + 2)) {
    const std::string_view directive = format.substr(at, 2);
    if (directive.size() < 2 || kDirectives.find(directive[1]) == kDirectives.npos) {
      return absl::InvalidArgumentError(
          StrCat("the directive '", directive, "' of strftime_now is not supported"));
    }
  }
  return MakeText(context.budget, absl::FormatTime(AbslView(format), context.now, context.zone));
}

}  // namespace

const Builtin* FindFunction(std::string_view name) {
  static const auto& table = *new std::vector<Builtin>{
      {"dict", {{"mapping"}}, MakeMapping<false>, /*variadic=*/true},
      {"namespace", {{"mapping"}}, MakeMapping<true>, /*variadic=*/true},
      {"raise_exception", {{"message", true}}, RaiseException},
      {"range", {{"start", true}, {"stop", false, None()}, {"step", false, None()}}, Range},
      {"strftime_now", {{"format", true}}, StrftimeNow},
  };
  return FindIn(table, name);
}

std::optional<Value> GetMethod(const Value& object, const String& name) {
  constexpr std::string_view kOfDicts[] = {"clear", "pop", "popitem", "setdefault", "update"};
  constexpr std::string_view kOfLists[] = {"append", "clear",  "extend",  "insert",
                                           "pop",    "remove", "reverse", "sort"};
  if (const Builtin* method = FindMethod(object, *name)) {
    return std::make_shared<const Function>(Function{*name, method, object});
  }
  const auto is_in = [&name](const auto& names) {
    return std::count(std::begin(names), std::end(names), *name) > 0;
  };
  const bool changes = (object.dict() != nullptr && is_in(kOfDicts)) ||
                       (object.list() != nullptr && is_in(kOfLists));
  if (changes) return Undefined{name};
  return std::nullopt;
}

absl::StatusOr<Value> MakeText(Budget& budget, std::string text) {
  MILLRACE_RETURN_IF_ERROR(budget.SpendText(text.size()));
  return Value(std::move(text));
}

absl::StatusOr<Value> MakeTexts(Budget& budget, const std::vector<std::string_view>& texts) {
  std::vector<Value> items;
  items.reserve(texts.size());
  for (const std::string_view text : texts) {
    MILLRACE_RETURN_IF_ERROR(budget.SpendText(text.size()));
    items.emplace_back(text);
  }
  return MakeList(budget, std::move(items));
}

absl::StatusOr<Value> DictItems(Budget& budget, const Dict& dict, ListKind kind) {
  std::vector<Value> items;
  for (const auto& [key, value] : dict.items) {
    MILLRACE_RETURN_IF_ERROR(budget.Spend(1));
    MILLRACE_ASSIGN_OR_RETURN(Value item, MakeList(budget, {key, value}, ListKind::kTuple));
    items.push_back(std::move(item));
  }
  return MakeList(budget, std::move(items), kind);
}

absl::StatusOr<Value> ReplaceText(Budget& budget, std::string_view text, std::string_view from,
                                  std::string_view to, int64_t count) {
  MILLRACE_RETURN_IF_ERROR(budget.SpendText(text.size()));
  std::string result;
  for (bool first = true; count != 0; --count, first = false) {
    // The length of what stays before the next occurrence.
    size_t at = FindText(text, from);
    if (from.empty() && !first) {
      if (text.empty()) break;
      at = NextCodePoint(text).size;
    }
    if (at == std::string_view::npos) break;
    result.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
    MILLRACE_RETURN_IF_ERROR(budget.SpendText(to.size()));
    if (result.size() > budget.limits().max_output_bytes) break;
  }
  return MakeText(budget, result.append(text));
}

absl::StatusOr<Value> StripText(Budget& budget, std::string_view text, const Value& characters,
                                Side side) {
  MILLRACE_RETURN_IF_ERROR(budget.SpendText(text.size()));
  if (characters.Is<None>()) return MakeText(budget, std::string(StripSpace(text, side)));
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view set, StringArgument("chars", characters));
  // Every character of the text may be looked for in the whole set.
  MILLRACE_RETURN_IF_ERROR(budget.Spend((1 + text.size() / 64) * (1 + set.size() / 64)));
  return MakeText(budget, std::string(StripAny(text, set, side)));
}

absl::StatusOr<Value> PadText(Budget& budget, std::string_view text, int64_t width,
                              std::string_view fill, Side side) {
  const auto size = static_cast<int64_t>(CountCodePoints(text));
  if (width <= size) return MakeText(budget, std::string(text));
  const auto total = static_cast<uint64_t>(width - size);
  // No text may be so long, so that the product cannot wrap around either.
  const size_t most = budget.limits().max_output_bytes + 1;
  MILLRACE_RETURN_IF_ERROR(
      budget.SpendText(text.size() + fill.size() * std::min<uint64_t>(total, most)));
  const uint64_t odd = total & static_cast<uint64_t>(width) & 1;
  const uint64_t left = side == Side::kLeft ? total : side == Side::kRight ? 0 : total / 2 + odd;
  std::string result;
  for (uint64_t i = 0; i < total; ++i) {
    if (i == left) result += text;
    result += fill;
  }
  if (left == total) result += text;
  return Value(std::move(result));
}

absl::StatusOr<Value> GetPath(Budget& budget, const Value& object, const Value& path,
                              const Value& otherwise) {
  std::vector<Value> keys;
  if (path.string() == nullptr) {
    keys.push_back(path);
  } else {
    for (const std::string_view part : Split(*path.string(), ".", -1)) {
      const bool is_index = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
      const auto index = is_index ? ParseNumber<int64_t>(part) : std::nullopt;
      keys.push_back(index ? Value(*index) : Value(part));
    }
  }
  const bool has_otherwise = !otherwise.Is<Undefined>() && !otherwise.Is<None>();
  Value value = object;
  for (const Value& key : keys) {
    MILLRACE_ASSIGN_OR_RETURN(value, GetItem(budget, value, key));
    if (has_otherwise && value.Is<Undefined>()) value = otherwise;
  }
  return value;
}

absl::StatusOr<std::string_view> StringArgument(std::string_view name, const Value& value) {
  if (value.string() != nullptr) return std::string_view(*value.string());
  return TypeError(StrCat("take as string argument '", name, "'"), value);
}

absl::Status CheckUnnamed(const Value& named_rest) {
  const auto& items = named_rest.dict()->items;
  if (items.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("there is no argument '", items.front().first.string()->substr(0, 100), "'"));
}

absl::StatusOr<int64_t> IntegerArgument(std::string_view name, const Value& value) {
  if (const auto integer = value.integer()) return *integer;
  return TypeError(StrCat("take as integer argument '", name, "'"), value);
}

}  // namespace millrace::jinja
