// The filters of lists and dicts, but for those that order or compare items.
// https://jinja.palletsprojects.com/en/stable/templates/#list-of-builtin-filters
#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "text/jinja/builtin.h"
#include "text/jinja/call.h"
#include "text/jinja/operators.h"

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

// Cuts the items into lists of `linecount` each; `fill_with` fills the last one up.
absl::StatusOr<Value> Batch(CallContext& context, const Value& self, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const int64_t count, IntegerArgument("linecount", args[0]));
  MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(context.budget, self));
  MILLRACE_RETURN_IF_ERROR(context.budget.Spend(2 * items->items.size()));
  std::vector<Value> batches;
  std::vector<Value> batch;
  const auto finish = [&]() -> absl::Status {
    MILLRACE_ASSIGN_OR_RETURN(Value list, MakeList(context.budget, std::exchange(batch, {})));
    batches.push_back(std::move(list));
    return absl::OkStatus();
  };
  for (const Value& item : items->items) {
    // A count of 0 gives an empty list and one of all items, as in Jinja.
    if (static_cast<int64_t>(batch.size()) == count) MILLRACE_RETURN_IF_ERROR(finish());
    batch.push_back(item);
  }
  if (!batch.empty()) {
    const auto size = static_cast<int64_t>(batch.size());
    if (!args[1].Is<None>() && size < count) {
      MILLRACE_RETURN_IF_ERROR(context.budget.Spend(static_cast<size_t>(count - size)));
      batch.resize(static_cast<size_t>(count), args[1]);
    }
    MILLRACE_RETURN_IF_ERROR(finish());
  }
  return MakeList(context.budget, std::move(batches), ListKind::kIterator);
}

// So many lists of the items, the first ones longer by one where they cannot be equally long; then
// the others end with `fill_with`.
absl::StatusOr<Value> Slice(CallContext& context, const Value& self, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const int64_t slices, IntegerArgument("slices", args[0]));
  if (slices == 0) return absl::InvalidArgumentError("slice: division by zero");
  MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(context.budget, self));
  const auto size = static_cast<int64_t>(items->items.size());
  const auto count = static_cast<size_t>(std::max<int64_t>(slices, 0));
  MILLRACE_RETURN_IF_ERROR(context.budget.Spend(count));
  MILLRACE_RETURN_IF_ERROR(context.budget.Spend(count + items->items.size()));
  std::vector<Value> lists;
  auto begin = items->items.begin();
  for (int64_t i = 0; i < slices; ++i) {
    const bool longer = i < size % slices;
    const auto end = begin + size / slices + (longer ? 1 : 0);
    std::vector<Value> slice(begin, end);
    begin = end;
    if (!args[1].Is<None>() && !longer) slice.push_back(args[1]);
    MILLRACE_ASSIGN_OR_RETURN(Value list, MakeList(context.budget, std::move(slice)));
    lists.push_back(std::move(list));
  }
  return MakeList(context.budget, std::move(lists), ListKind::kIterator);
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
    const Parameter fill_with = {"fill_with", false, None()};
    return new std::vector<Builtin>{
        {"batch", {{"linecount", true}, fill_with}, Batch},
        {"first", {}, First},
        {"items", {}, Items},
        {"join", {{"d", false, ""}, attribute}, Join},
        {"last", {}, Last},
        {"list", {}, ToList},
        {"map", {}, Map, /*variadic=*/true},
        {"reject", {}, Select<false, false>, /*variadic=*/true},
        {"rejectattr", {}, Select<true, false>, /*variadic=*/true},
        {"reverse", {}, Reverse},
        {"select", {}, Select<false, true>, /*variadic=*/true},
        {"selectattr", {}, Select<true, true>, /*variadic=*/true},
        {"slice", {{"slices", true}, fill_with}, Slice},
        {"sum", {attribute, {"start", false, int64_t{0}}}, Sum},
    };
  }();
  return FindIn(table, name);
}

}  // namespace millrace::jinja
