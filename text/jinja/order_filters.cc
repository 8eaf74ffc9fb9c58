// The filters that put the items of a list or a dict into an order, or compare them.
// https://jinja.palletsprojects.com/en/stable/templates/#list-of-builtin-filters
#include <algorithm>
#include <optional>
#include <utility>

#include "base/status.h"
#include "text/jinja/builtin.h"

namespace millrace::jinja {
namespace {

using Args = absl::Span<const Value>;

// The value that an item is ordered by: itself, or what stands at a path in it (`otherwise` where
// that is missing); strings in lower case unless `case_sensitive`.
absl::StatusOr<Value> KeyOf(CallContext& context, const Value& item, const Value& path,
                            bool case_sensitive, const Value& otherwise = {}) {
  Value key = item;
  if (!path.Is<None>()) {
    MILLRACE_ASSIGN_OR_RETURN(key, GetPath(context.budget, item, path, otherwise));
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

// A (key, items) tuple for each key, in the order of the keys.
absl::StatusOr<Value> GroupBy(CallContext& context, const Value& self, Args args) {
  const bool case_sensitive = Truthy(args[2]);
  MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(context.budget, self));
  std::vector<Keyed> keyed;
  for (const Value& item : items->items) {
    MILLRACE_ASSIGN_OR_RETURN(Value key, KeyOf(context, item, args[0], case_sensitive, args[1]));
    keyed.push_back({std::move(key), item});
  }
  MILLRACE_RETURN_IF_ERROR(SortByKey(context.budget, keyed, /*reverse=*/false));
  std::vector<Value> groups;
  for (size_t begin = 0, end = 0; begin < keyed.size(); begin = end) {
    std::vector<Value> group;
    for (bool same = true; same && end < keyed.size();) {
      MILLRACE_ASSIGN_OR_RETURN(same, Equal(context.budget, keyed[begin].key, keyed[end].key));
      if (same) group.push_back(keyed[end++].item);
    }
    if (group.empty()) group.push_back(keyed[end++].item);  // A key that does not equal itself.
    // The key as the group's first item has it, not in lower case.
    MILLRACE_ASSIGN_OR_RETURN(const Value key, GetPath(context.budget, group[0], args[0], args[1]));
    MILLRACE_ASSIGN_OR_RETURN(const Value list, MakeList(context.budget, std::move(group)));
    MILLRACE_ASSIGN_OR_RETURN(Value pair, MakeGroup(context.budget, key, list));
    groups.push_back(std::move(pair));
  }
  return MakeList(context.budget, std::move(groups));
}

}  // namespace

const Builtin* FindOrderFilter(std::string_view name) {
  static const auto& table = *[] {
    const Parameter attribute = {"attribute", false, None()};
    const Parameter case_sensitive = {"case_sensitive", false, false};
    const Parameter reverse = {"reverse", false, false};
    return new std::vector<Builtin>{
        {"dictsort", {case_sensitive, {"by", false, "key"}, reverse}, DictSort},
        {"groupby", {{"attribute", true}, {"default", false, None()}, case_sensitive}, GroupBy},
        {"max", {case_sensitive, attribute}, Extreme<true>},
        {"min", {case_sensitive, attribute}, Extreme<false>},
        {"sort", {reverse, case_sensitive, attribute}, Sort},
        {"unique", {case_sensitive, attribute}, Unique},
    };
  }();
  return FindIn(table, name);
}

}  // namespace millrace::jinja
