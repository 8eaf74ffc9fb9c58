// The filters of lists and dicts.
// https://jinja.palletsprojects.com/en/stable/templates/#list-of-builtin-filters
#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "server/text/jinja_builtin.h"
#include "server/text/jinja_call.h"
#include "server/text/jinja_operators.h"

namespace millrace::jinja {
namespace {

using Args = absl::Span<const Value>;

bool IsIterator(const Value& value) {
  return value.Is<std::shared_ptr<const List>>() && value.list() == nullptr;
}

absl::StatusOr<Value> First(CallContext& context, const Value& self, Args) {
  MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(context.budget, self));
  return items->items.empty() ? Value() : items->items.front();
}

absl::StatusOr<Value> Last(CallContext& context, const Value& self, Args) {
  if (IsIterator(self)) return TypeError("take the last item of", self);
  MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(context.budget, self));
  return items->items.empty() ? Value() : items->items.back();
}

absl::StatusOr<Value> ToList(CallContext& context, const Value& self, Args) {
  MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(context.budget, self));
  MILLRACE_RETURN_IF_ERROR(context.budget.Spend(items->items.size()));
  return MakeList(context.budget, items->items);
}

absl::StatusOr<Value> Reverse(CallContext& context, const Value& self, Args) {
  if (self.string() != nullptr) {
    return GetSlice(context.budget, self, None(), None(), int64_t{-1});
  }
  MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(context.budget, self));
  MILLRACE_RETURN_IF_ERROR(context.budget.Spend(items->items.size()));
  return MakeList(context.budget, {items->items.rbegin(), items->items.rend()},
                  IsIterator(self) ? ListKind::kList : ListKind::kIterator);
}

absl::StatusOr<Value> Items(CallContext& context, const Value& self, Args) {
  if (self.Is<Undefined>()) return MakeList(context.budget, {}, ListKind::kIterator);
  if (self.dict() == nullptr) return TypeError("take the items of", self);
  return DictItems(context.budget, *self.dict(), ListKind::kIterator);
}

// The item at a path such as "function.name" or "0.text". `otherwise`, unless it is undefined or
// none, stands for every part that is missing.
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

absl::StatusOr<Value> Join(CallContext& context, const Value& self, Args args) {
  Budget& budget = context.budget;
  MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(budget, self));
  MILLRACE_ASSIGN_OR_RETURN(const std::string separator, ToText(budget, args[0]));
  std::string result;
  for (const Value& item : items->items) {
    Value value = item;
    if (!args[1].Is<None>()) {
      MILLRACE_ASSIGN_OR_RETURN(value, GetPath(budget, item, args[1], Value()));
    }
    MILLRACE_ASSIGN_OR_RETURN(const std::string text, ToText(budget, value));
    if (&item != &items->items.front()) result += separator;
    result += text;
    MILLRACE_RETURN_IF_ERROR(budget.SpendText(separator.size() + text.size()));
    if (result.size() > budget.limits().max_output_bytes) break;
  }
  return MakeText(budget, std::move(result));
}

// Calls the filter or test that the first of the arguments names, with the others.
absl::StatusOr<Value> CallNamed(CallContext& context, const char* kind,
                                const Builtin* (*find)(std::string_view), const Value& self,
                                absl::Span<const Value> args, const Dict& named) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view name, StringArgument(kind, args[0]));
  const Builtin* builtin = find(name);
  if (builtin == nullptr) {
    return absl::InvalidArgumentError(StrCat(kind, " ", name.substr(0, 100), " is not supported"));
  }
  Arguments arguments;
  arguments.positional.assign(args.begin() + 1, args.end());
  for (const auto& [key, value] : named.items) arguments.named.emplace_back(*key.string(), value);
  MILLRACE_RETURN_IF_ERROR(context.budget.Spend(args.size() + named.items.size()));
  return CallBuiltin(context, *builtin, self, std::move(arguments));
}

// Jinja's map and select take a value that is false, also none, for an empty list.
absl::StatusOr<std::shared_ptr<const List>> IterateIfAny(Budget& budget, const Value& value) {
  return Iterate(budget, Truthy(value) ? value : Value());
}

// The result of a filter for each item, or with `attribute` an item of each, or `default`.
absl::StatusOr<Value> Map(CallContext& context, const Value& self, Args args) {
  const std::vector<Value>& rest = args[0].list()->items;
  const Dict& named = *args[1].dict();
  const bool by_filter = !rest.empty();
  Value attribute;
  Value otherwise;
  if (!by_filter) {
    for (const auto& [key, value] : named.items) {
      const bool is_attribute = *key.string() == "attribute";
      if (!is_attribute && *key.string() != "default") return CheckUnnamed(args[1]);
      (is_attribute ? attribute : otherwise) = value;
    }
    if (attribute.Is<Undefined>()) {
      return absl::InvalidArgumentError("map needs either a filter's name or 'attribute'");
    }
  }
  MILLRACE_ASSIGN_OR_RETURN(const auto items, IterateIfAny(context.budget, self));
  std::vector<Value> results;
  for (const Value& item : items->items) {
    MILLRACE_RETURN_IF_ERROR(context.budget.Spend(1));
    MILLRACE_ASSIGN_OR_RETURN(
        Value result, by_filter ? CallNamed(context, "filter", FindFilter, item, rest, named)
                                : GetPath(context.budget, item, attribute, otherwise));
    results.push_back(std::move(result));
  }
  return MakeList(context.budget, std::move(results), ListKind::kIterator);
}

// Keeps the items for which a test of the value, or of its attribute, has the wanted result. The
// arguments are the attribute's path if kByAttribute, then the test's name and its arguments.
template <bool kByAttribute, bool kWanted>
absl::StatusOr<Value> Select(CallContext& context, const Value& self, Args args) {
  const std::vector<Value>& rest = args[0].list()->items;
  const Dict& named = *args[1].dict();
  if (kByAttribute && rest.empty()) {
    return absl::InvalidArgumentError("selectattr and rejectattr need an attribute's name");
  }
  const auto test = absl::MakeConstSpan(rest).subspan(kByAttribute ? 1 : 0);
  MILLRACE_ASSIGN_OR_RETURN(const auto items, IterateIfAny(context.budget, self));
  std::vector<Value> results;
  for (const Value& item : items->items) {
    MILLRACE_RETURN_IF_ERROR(context.budget.Spend(1));
    Value subject = item;
    if (kByAttribute) {
      MILLRACE_ASSIGN_OR_RETURN(subject, GetPath(context.budget, item, rest[0], Value()));
    }
    if (!test.empty()) {
      MILLRACE_ASSIGN_OR_RETURN(subject,
                                CallNamed(context, "test", FindTest, subject, test, named));
    }
    if (Truthy(subject) == kWanted) results.push_back(item);
  }
  return MakeList(context.budget, std::move(results), ListKind::kIterator);
}

// What an item is sorted or told apart by: itself or what stands at a path in it, strings in lower
// case unless `case_sensitive`.
absl::StatusOr<Value> KeyOf(CallContext& context, const Value& item, const Value& path,
                            bool case_sensitive) {
  Value key = item;
  if (!path.Is<None>()) {
    MILLRACE_ASSIGN_OR_RETURN(key, GetPath(context.budget, item, path, Value()));
  }
  if (case_sensitive || key.string() == nullptr) return key;
  MILLRACE_RETURN_IF_ERROR(context.budget.SpendText(key.string()->size()));
  return MakeText(context.budget, Lower(*key.string()));
}

struct Keyed {
  Value key;
  Value item;
};

absl::Status SortByKey(Budget& budget, std::vector<Keyed>& items, bool reverse) {
  absl::Status status;
  std::stable_sort(items.begin(), items.end(), [&](const Keyed& a, const Keyed& b) {
    if (!status.ok()) return false;
    const auto less = reverse ? Less(budget, b.key, a.key) : Less(budget, a.key, b.key);
    status = less.status();
    return less.ok() && *less;
  });
  return status;
}

absl::StatusOr<Value> TakeItems(Budget& budget, std::vector<Keyed> keyed) {
  std::vector<Value> items;
  for (Keyed& entry : keyed) items.push_back(std::move(entry.item));
  return MakeList(budget, std::move(items));
}

absl::StatusOr<Value> Sort(CallContext& context, const Value& self, Args args) {
  // "age,name" sorts by the one, then by the other.
  std::vector<Value> paths = {args[2]};
  if (args[2].string() != nullptr) {
    const auto parts = Split(*args[2].string(), ",", -1);
    paths.assign(parts.begin(), parts.end());
  }
  MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(context.budget, self));
  std::vector<Keyed> keyed;
  for (const Value& item : items->items) {
    std::vector<Value> keys;
    for (const Value& path : paths) {
      MILLRACE_ASSIGN_OR_RETURN(Value key, KeyOf(context, item, path, Truthy(args[1])));
      keys.push_back(std::move(key));
    }
    MILLRACE_ASSIGN_OR_RETURN(Value key, MakeList(context.budget, std::move(keys)));
    keyed.push_back({std::move(key), item});
  }
  MILLRACE_RETURN_IF_ERROR(SortByKey(context.budget, keyed, Truthy(args[0])));
  return TakeItems(context.budget, std::move(keyed));
}

absl::StatusOr<Value> DictSort(CallContext& context, const Value& self, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view by, StringArgument("by", args[1]));
  if (by != "key" && by != "value") {
    return absl::InvalidArgumentError("the argument 'by' of dictsort is neither key nor value");
  }
  if (self.dict() == nullptr) return TypeError("take the items of", self);
  MILLRACE_ASSIGN_OR_RETURN(const Value items, DictItems(context.budget, *self.dict()));
  std::vector<Keyed> keyed;
  for (const Value& item : items.list()->items) {
    const Value index = int64_t{by == "value"};
    MILLRACE_ASSIGN_OR_RETURN(Value key, KeyOf(context, item, index, Truthy(args[0])));
    keyed.push_back({std::move(key), item});
  }
  MILLRACE_RETURN_IF_ERROR(SortByKey(context.budget, keyed, Truthy(args[2])));
  return TakeItems(context.budget, std::move(keyed));
}

absl::StatusOr<Value> Unique(CallContext& context, const Value& self, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(context.budget, self));
  std::vector<Value> keys;
  std::vector<Value> results;
  for (const Value& item : items->items) {
    MILLRACE_ASSIGN_OR_RETURN(Value key, KeyOf(context, item, args[1], Truthy(args[0])));
    MILLRACE_RETURN_IF_ERROR(CheckKey(key));
    bool known = false;
    for (size_t i = 0; i < keys.size() && !known; ++i) {
      MILLRACE_ASSIGN_OR_RETURN(known, Equal(context.budget, keys[i], key));
    }
    if (known) continue;
    keys.push_back(std::move(key));
    results.push_back(item);
  }
  return MakeList(context.budget, std::move(results), ListKind::kIterator);
}

// The first of the least or greatest items; undefined if there are none.
template <bool kGreatest>
absl::StatusOr<Value> Extreme(CallContext& context, const Value& self, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(context.budget, self));
  std::optional<Keyed> best;
  for (const Value& item : items->items) {
    MILLRACE_ASSIGN_OR_RETURN(Value key, KeyOf(context, item, args[1], Truthy(args[0])));
    bool better = !best;
    if (best) {
      MILLRACE_ASSIGN_OR_RETURN(better, kGreatest ? Less(context.budget, best->key, key)
                                                  : Less(context.budget, key, best->key));
    }
    if (better) best = {std::move(key), item};
  }
  return best ? best->item : Value();
}

absl::StatusOr<Value> Sum(CallContext& context, const Value& self, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(context.budget, self));
  Value sum = args[1];
  for (const Value& item : items->items) {
    Value value = item;
    if (!args[0].Is<None>()) {
      MILLRACE_ASSIGN_OR_RETURN(value, GetPath(context.budget, item, args[0], Value()));
    }
    if (value.string() != nullptr) return TypeError("sum up", value);
    MILLRACE_ASSIGN_OR_RETURN(sum, Calculate(context.budget, Operator::kAdd, sum, value));
  }
  return sum;
}

}  // namespace

const Builtin* FindListFilter(std::string_view name) {
  static const auto& table = *[] {
    const Parameter attribute = {"attribute", false, None()};
    const Parameter case_sensitive = {"case_sensitive", false, false};
    const Parameter reverse = {"reverse", false, false};
    return new std::vector<Builtin>{
        {"dictsort", {case_sensitive, {"by", false, "key"}, reverse}, DictSort},
        {"first", {}, First},
        {"items", {}, Items},
        {"join", {{"d", false, ""}, attribute}, Join},
        {"last", {}, Last},
        {"list", {}, ToList},
        {"map", {}, Map, /*variadic=*/true},
        {"max", {case_sensitive, attribute}, Extreme<true>},
        {"min", {case_sensitive, attribute}, Extreme<false>},
        {"reject", {}, Select<false, false>, /*variadic=*/true},
        {"rejectattr", {}, Select<true, false>, /*variadic=*/true},
        {"reverse", {}, Reverse},
        {"select", {}, Select<false, true>, /*variadic=*/true},
        {"selectattr", {}, Select<true, true>, /*variadic=*/true},
        {"sort", {reverse, case_sensitive, attribute}, Sort},
        {"sum", {attribute, {"start", false, int64_t{0}}}, Sum},
        {"unique", {case_sensitive, attribute}, Unique},
    };
  }();
  return FindIn(table, name);
}

}  // namespace millrace::jinja
