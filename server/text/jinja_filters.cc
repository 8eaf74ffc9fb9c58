// The filters, `value | name(arguments)`.
// https://jinja.palletsprojects.com/en/stable/templates/#list-of-builtin-filters
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/status.h"
#include "base/strings.h"
#include "server/text/jinja_builtin.h"
#include "server/text/jinja_json.h"
#include "server/text/jinja_operators.h"

namespace millrace::jinja {
namespace {

using Args = absl::Span<const Value>;

template <std::string (*kMap)(std::string_view)>
absl::StatusOr<Value> MapText(CallContext& context, const Value& self, Args) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string text, ToText(context.budget, self));
  return MakeText(context.budget, kMap(text));
}

absl::StatusOr<Value> Text(CallContext& context, const Value& self, Args) {
  MILLRACE_ASSIGN_OR_RETURN(std::string text, ToText(context.budget, self));
  return Value(std::move(text));
}

absl::StatusOr<Value> Trim(CallContext& context, const Value& self, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string text, ToText(context.budget, self));
  return StripText(context.budget, text, args[0], Side::kBoth);
}

absl::StatusOr<Value> Replace(CallContext& context, const Value& self, Args args) {
  Budget& budget = context.budget;
  MILLRACE_ASSIGN_OR_RETURN(const std::string text, ToText(budget, self));
  MILLRACE_ASSIGN_OR_RETURN(const std::string from, ToText(budget, args[0]));
  MILLRACE_ASSIGN_OR_RETURN(const std::string to, ToText(budget, args[1]));
  if (args[2].Is<None>()) return ReplaceText(budget, text, from, to, -1);
  MILLRACE_ASSIGN_OR_RETURN(const int64_t count, IntegerArgument("count", args[2]));
  return ReplaceText(budget, text, from, to, count);
}

absl::StatusOr<Value> Indent(CallContext& context, const Value& self, Args args) {
  Budget& budget = context.budget;
  if (self.string() == nullptr) return TypeError("indent", self);
  MILLRACE_RETURN_IF_ERROR(budget.SpendText(self.string()->size()));
  Value space = args[0];
  if (space.string() == nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(space, Calculate(budget, Operator::kMultiply, " ", args[0]));
  }
  const bool first = Truthy(args[1]);
  const bool blank = Truthy(args[2]);
  std::string result;
  // With a line end added, as Jinja does: a last empty line is a line then.
  const std::string ended = *self.string() + "\n";
  const std::vector<std::string_view> lines = SplitLines(ended);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) result += '\n';
    if (i == 0 ? first : blank || !lines[i].empty()) result += *space.string();
    result += lines[i];
    MILLRACE_RETURN_IF_ERROR(budget.SpendText(space.string()->size() + lines[i].size()));
    if (result.size() > budget.limits().max_output_bytes) break;
  }
  return MakeText(budget, std::move(result));
}

absl::StatusOr<Value> Safe(CallContext& context, const Value& self, Args args) {
  return Text(context, self, args);  // Nothing is ever escaped here.
}

absl::StatusOr<Value> ToJsonFilter(CallContext& context, const Value& self, Args args) {
  JsonStyle style;
  style.ascii = Truthy(args[0]);
  if (const std::string* indent = args[1].string()) {
    style.indent = *indent;
  } else if (!args[1].Is<None>()) {
    MILLRACE_ASSIGN_OR_RETURN(const Value indent,
                              Calculate(context.budget, Operator::kMultiply, " ", args[1]));
    style.indent = *indent.string();
  }
  if (style.indent) style.item_separator = ",";
  if (const List* separators = args[2].list()) {
    if (separators->items.size() != 2) {
      return absl::InvalidArgumentError("the argument 'separators' of tojson is not a pair");
    }
    MILLRACE_ASSIGN_OR_RETURN(style.item_separator,
                              StringArgument("separators", separators->items[0]));
    MILLRACE_ASSIGN_OR_RETURN(style.key_separator,
                              StringArgument("separators", separators->items[1]));
  } else if (!args[2].Is<None>()) {
    return TypeError("take as pair 'separators'", args[2]);
  }
  style.sort_keys = Truthy(args[3]);
  MILLRACE_ASSIGN_OR_RETURN(std::string text, ToJson(context.budget, self, style));
  return Value(std::move(text));
}

absl::StatusOr<Value> Default(CallContext&, const Value& self, Args args) {
  const bool use_other = self.Is<Undefined>() || (Truthy(args[1]) && !Truthy(self));
  return use_other ? args[0] : self;
}

absl::StatusOr<Value> Length(CallContext& context, const Value& self, Args) {
  size_t length = 0;
  if (const std::string* text = self.string()) {
    MILLRACE_RETURN_IF_ERROR(context.budget.SpendText(text->size()));
    length = CountCodePoints(*text);
  } else if (const List* list = self.list()) {
    length = list->items.size();
  } else if (const Dict* dict = self.dict()) {
    length = dict->items.size();
  } else if (!self.Is<Undefined>()) {
    return TypeError("take the length of", self);
  }
  return Value(static_cast<int64_t>(length));
}

absl::StatusOr<Value> First(CallContext& context, const Value& self, Args) {
  MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(context.budget, self));
  return items->items.empty() ? Value() : items->items.front();
}

absl::StatusOr<Value> Last(CallContext& context, const Value& self, Args) {
  MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(context.budget, self));
  return items->items.empty() ? Value() : items->items.back();
}

absl::StatusOr<Value> ToList(CallContext& context, const Value& self, Args) {
  MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(context.budget, self));
  MILLRACE_RETURN_IF_ERROR(context.budget.Spend(items->items.size()));
  return MakeList(context.budget, items->items);
}

absl::StatusOr<Value> Reverse(CallContext& context, const Value& self, Args) {
  return GetSlice(context.budget, self, None(), None(), int64_t{-1});
}

absl::StatusOr<Value> Items(CallContext& context, const Value& self, Args) {
  if (self.Is<Undefined>()) return MakeList(context.budget, {});
  if (self.dict() == nullptr) return TypeError("take the items of", self);
  return DictItems(context.budget, *self.dict());
}

absl::StatusOr<Value> ToInteger(CallContext&, const Value& self, Args args) {
  int64_t integer = 0;
  double real = 0;
  if (const std::string* text = self.string()) {
    const std::string_view digits = StripSpace(*text, Side::kBoth);
    if (absl::SimpleAtoi(AbslView(digits), &integer)) return Value(integer);
    if (!absl::SimpleAtod(AbslView(digits), &real)) return args[0];
  } else if (self.integer()) {
    return Value(*self.integer());
  } else if (self.number()) {
    real = *self.number();
  } else {
    return self.Is<Undefined>() ? UndefinedError(*self.Get<Undefined>())
                                : absl::StatusOr<Value>(args[0]);
  }
  if (!std::isfinite(real)) return args[0];
  if (std::abs(real) >= 9.2e18) {
    return absl::InvalidArgumentError("an integer does not fit 64 bits");
  }
  return Value(static_cast<int64_t>(real));
}

absl::StatusOr<Value> ToFloat(CallContext&, const Value& self, Args args) {
  double real = 0;
  if (self.number()) return Value(*self.number());
  if (const auto* undefined = self.Get<Undefined>()) return UndefinedError(*undefined);
  const bool parsed = self.string() != nullptr &&
                      absl::SimpleAtod(AbslView(StripSpace(*self.string(), Side::kBoth)), &real);
  return parsed ? Value(real) : args[0];
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

// Calls the filter or test that a string names, with its first argument if it takes one.
absl::StatusOr<Value> CallNamed(CallContext& context, const char* kind,
                                const Builtin* (*find)(std::string_view), const Value& name,
                                const Value& self, Args given) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view text, StringArgument(kind, name));
  const Builtin* builtin = find(text);
  if (builtin == nullptr) {
    return absl::InvalidArgumentError(StrCat(kind, " ", text, " is not supported"));
  }
  std::vector<Value> args;
  for (const Parameter& parameter : builtin->parameters) {
    const size_t index = args.size();
    const bool is_given = index < given.size() && !given[index].Is<Undefined>();
    if (parameter.required && !is_given) {
      return absl::InvalidArgumentError(
          StrCat(kind, " ", text, " needs the argument '", parameter.name, "'"));
    }
    args.push_back(is_given ? given[index] : parameter.otherwise);
  }
  return builtin->run(context, self, args);
}

// Jinja's map and select take a value that is false, also none, for an empty list.
absl::StatusOr<std::shared_ptr<const List>> IterateIfAny(Budget& budget, const Value& value) {
  return Iterate(budget, Truthy(value) ? value : Value());
}

absl::StatusOr<Value> Map(CallContext& context, const Value& self, Args args) {
  const auto& [filter, attribute, otherwise] = std::tie(args[0], args[1], args[2]);
  if (filter.Is<Undefined>() == attribute.Is<Undefined>()) {
    return absl::InvalidArgumentError("map needs either a filter's name or 'attribute'");
  }
  MILLRACE_ASSIGN_OR_RETURN(const auto items, IterateIfAny(context.budget, self));
  std::vector<Value> results;
  for (const Value& item : items->items) {
    MILLRACE_RETURN_IF_ERROR(context.budget.Spend(1));
    Value result;
    if (filter.Is<Undefined>()) {
      MILLRACE_ASSIGN_OR_RETURN(result, GetPath(context.budget, item, attribute, otherwise));
    } else {
      MILLRACE_ASSIGN_OR_RETURN(result, CallNamed(context, "filter", FindFilter, filter, item, {}));
    }
    results.push_back(std::move(result));
  }
  return MakeList(context.budget, std::move(results));
}

// Keeps the items for which a test of the value, or of its attribute, has the wanted result. The
// arguments are the attribute's path if kByAttribute, then the test's name and its argument.
template <bool kByAttribute, bool kWanted>
absl::StatusOr<Value> Select(CallContext& context, const Value& self, Args args) {
  const Value& test = args[kByAttribute ? 1 : 0];
  MILLRACE_ASSIGN_OR_RETURN(const auto items, IterateIfAny(context.budget, self));
  std::vector<Value> results;
  for (const Value& item : items->items) {
    MILLRACE_RETURN_IF_ERROR(context.budget.Spend(1));
    Value subject = item;
    if (kByAttribute) {
      MILLRACE_ASSIGN_OR_RETURN(subject, GetPath(context.budget, item, args[0], Value()));
    }
    if (!test.Is<Undefined>()) {
      MILLRACE_ASSIGN_OR_RETURN(subject, CallNamed(context, "test", FindTest, test, subject,
                                                   args.subspan(kByAttribute ? 2 : 1)));
    }
    if (Truthy(subject) == kWanted) results.push_back(item);
  }
  return MakeList(context.budget, std::move(results));
}

}  // namespace

const Builtin* FindFilter(std::string_view name) {
  static const auto& table = *[] {
    const std::vector<Parameter> otherwise = {{"default_value", false, ""},
                                              {"boolean", false, false}};
    const std::vector<Parameter> select = {{"test"}, {"argument"}};
    const std::vector<Parameter> select_attribute = {{"attribute", true}, {"test"}, {"argument"}};
    return new std::vector<Builtin>{
        {"capitalize", {}, MapText<Capitalize>},
        {"count", {}, Length},
        {"d", otherwise, Default},
        {"default", otherwise, Default},
        {"first", {}, First},
        {"float", {{"default", false, 0.0}}, ToFloat},
        {"indent",
         {{"width", false, int64_t{4}}, {"first", false, false}, {"blank", false, false}},
         Indent},
        {"int", {{"default", false, int64_t{0}}}, ToInteger},
        {"items", {}, Items},
        {"join", {{"d", false, ""}, {"attribute", false, None()}}, Join},
        {"last", {}, Last},
        {"length", {}, Length},
        {"list", {}, ToList},
        {"lower", {}, MapText<Lower>},
        {"map", {{"filter"}, {"attribute"}, {"default"}}, Map},
        {"reject", select, Select<false, false>},
        {"rejectattr", select_attribute, Select<true, false>},
        {"replace", {{"old", true}, {"new", true}, {"count", false, None()}}, Replace},
        {"reverse", {}, Reverse},
        {"safe", {}, Safe},
        {"select", select, Select<false, true>},
        {"selectattr", select_attribute, Select<true, true>},
        {"string", {}, Text},
        {"title", {}, MapText<TitleWords>},
        {"tojson",
         {{"ensure_ascii", false, false},
          {"indent", false, None()},
          {"separators", false, None()},
          {"sort_keys", false, false}},
         ToJsonFilter},
        {"trim", {{"chars", false, None()}}, Trim},
        {"upper", {}, MapText<Upper>},
    };
  }();
  return FindIn(table, name);
}

}  // namespace millrace::jinja
