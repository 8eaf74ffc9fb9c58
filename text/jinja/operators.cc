#include "text/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "text/jinja/ast.h"
#include "text/jinja/builtin.h"
#include "text/jinja/format.h"
#include "text/jinja/text.h"

namespace millrace::jinja {
namespace {

constexpr std::string_view kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};

absl::StatusOr<Value> Unsupported(Operator op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (const auto* undefined = value->Get<Undefined>()) return UndefinedError(*undefined);
  }
  return absl::InvalidArgumentError(StrCat("a ", TypeName(a), " ", kSigns[static_cast<int>(op)],
                                           " a ", TypeName(b), " is not supported"));
}

// base ** exponent for exponent >= 0; nothing on overflow.
std::optional<int64_t> Power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return std::nullopt;
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return std::nullopt;
  }
  return result;
}

// Nothing on overflow. Division rounds down, and the remainder has the sign of `b`, which is not 0.
std::optional<int64_t> CalculateIntegers(Operator op, int64_t a, int64_t b) {
  int64_t result;
  switch (op) {
    case Operator::kAdd:
      return __builtin_add_overflow(a, b, &result) ? std::nullopt : std::optional(result);
    case Operator::kSubtract:
      return __builtin_sub_overflow(a, b, &result) ? std::nullopt : std::optional(result);
    case Operator::kMultiply:
      return __builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result);
    case Operator::kPower:
      return Power(a, b);
    case Operator::kModulo:
      if (b == -1) return 0;
      return a % b + (a % b != 0 && (a % b < 0) != (b < 0) ? b : 0);
    default:
      if (b == -1) return CalculateIntegers(Operator::kSubtract, 0, a);
      return a / b - (a % b != 0 && (a % b < 0) != (b < 0) ? 1 : 0);
  }
}

double CalculateFloats(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return a + b;
    case Operator::kSubtract:
      return a - b;
    case Operator::kMultiply:
      return a * b;
    case Operator::kDivide:
      return a / b;
    case Operator::kPower:
      return std::pow(a, b);
    default:
      break;
  }
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  if (op == Operator::kModulo) return remainder == 0 ? std::copysign(0.0, b) : remainder;
  return std::round((a - remainder) / b);
}

absl::StatusOr<Value> CalculateNumbers(Operator op, const Value& a, const Value& b) {
  const bool divides = op == Operator::kDivide || op == Operator::kFloorDivide ||
                       op == Operator::kModulo || (op == Operator::kPower && *b.number() < 0);
  if (divides && (op == Operator::kPower ? *a.number() : *b.number()) == 0) {
    return absl::InvalidArgumentError("division by zero");
  }
  const bool is_integer = a.integer() && b.integer() && op != Operator::kDivide &&
                          !(op == Operator::kPower && *b.integer() < 0);
  if (is_integer) {
    const auto result = CalculateIntegers(op, *a.integer(), *b.integer());
    if (result) return *result;
    return absl::InvalidArgumentError("an integer does not fit 64 bits");
  }
  const double result = CalculateFloats(op, *a.number(), *b.number());
  if (op == Operator::kPower && !std::isfinite(result)) {
    return absl::InvalidArgumentError("the result of ** is no finite number");
  }
  return result;
}

absl::StatusOr<Value> Repeat(Budget& budget, const Value& value, int64_t count) {
  const size_t times = static_cast<size_t>(std::max<int64_t>(count, 0));
  const size_t size = value.list() != nullptr ? value.list()->items.size() : value.string()->size();
  // Checked by division, so that the product cannot wrap around.
  if (size > 0 && times > budget.limits().max_output_bytes / size) {
    return absl::InvalidArgumentError("a repeated string or list is too long");
  }
  if (const List* list = value.list()) {
    MILLRACE_RETURN_IF_ERROR(budget.Spend(size * times));
    std::vector<Value> items;
    items.reserve(size * times);
    for (size_t i = 0; size > 0 && i < times; ++i) {
      items.insert(items.end(), list->items.begin(), list->items.end());
    }
    return MakeList(budget, std::move(items), list->kind);
  }
  MILLRACE_RETURN_IF_ERROR(budget.SpendText(size * times));
  std::string text;
  text.reserve(size * times);
  for (size_t i = 0; size > 0 && i < times; ++i) text += *value.string();
  return Value(std::move(text));
}

absl::StatusOr<Value> AddText(Budget& budget, const Value& a, const Value& b) {
  const bool is_markup = a.Is<Markup>() || b.Is<Markup>();
  MILLRACE_RETURN_IF_ERROR(budget.SpendText(a.string()->size() + b.string()->size()));
  std::string text;
  for (const Value* part : {&a, &b}) {
    text += is_markup && !part->Is<Markup>() ? EscapeHtml(*part->string()) : *part->string();
  }
  if (!is_markup) return Value(std::move(text));
  MILLRACE_RETURN_IF_ERROR(budget.SpendText(text.size()));
  return Value(Markup{std::make_shared<const std::string>(std::move(text))});
}

absl::StatusOr<Value> Join(Budget& budget, const List& a, const List& b) {
  MILLRACE_RETURN_IF_ERROR(budget.Spend(a.items.size() + b.items.size()));
  std::vector<Value> items = a.items;
  items.insert(items.end(), b.items.begin(), b.items.end());
  return MakeList(budget, std::move(items), a.kind);
}

// Index `i` of `size` things, counted from the end when negative.
std::optional<size_t> Position(int64_t i, size_t size) {
  const auto count = static_cast<int64_t>(size);
  if (i < -count || i >= count) return std::nullopt;
  return static_cast<size_t>(i < 0 ? i + count : i);
}

Value LoopAttribute(const Loop& loop, const String& name) {
  const auto integer = [](size_t number) { return Value(static_cast<int64_t>(number)); };
  const std::vector<Value>& items = loop.items->items;
  const size_t after = items.size() - loop.index0 - 1;
  if (*name == "index0") return integer(loop.index0);
  if (*name == "index") return integer(loop.index0 + 1);
  if (*name == "first") return loop.index0 == 0;
  if (*name == "last") return after == 0;
  if (*name == "length") return integer(items.size());
  if (*name == "revindex") return integer(after + 1);
  if (*name == "revindex0") return integer(after);
  if (*name == "depth") return Value(int64_t{loop.depth0} + 1);
  if (*name == "depth0") return Value(int64_t{loop.depth0});
  if (*name == "previtem" && loop.index0 > 0) return items[loop.index0 - 1];
  if (*name == "nextitem" && after > 0) return items[loop.index0 + 1];
  return Undefined{name};
}

// The attributes that Jinja gives a macro.
absl::StatusOr<Value> MacroAttribute(const Budget& budget, const Function& function,
                                     const String& name) {
  const Statement& macro = *function.macro;
  const bool anonymous = macro.kind == StatementKind::kCallBlock;
  if (*name == "name") return anonymous ? Value(None()) : Value(macro.text);
  if (*name == "catch_kwargs") return Value(macro.uses.kwargs);
  if (*name == "catch_varargs") return Value(macro.uses.varargs);
  if (*name == "caller") return Value(macro.uses.caller);
  if (*name != "arguments") return Value(Undefined{name});
  std::vector<Value> names;
  for (const Target& parameter : macro.targets) names.emplace_back(parameter.name);
  return MakeList(budget, std::move(names), ListKind::kTuple);
}

}  // namespace

absl::StatusOr<Value> Calculate(Budget& budget, Operator op, const Value& a, const Value& b) {
  if (a.number() && b.number()) return CalculateNumbers(op, a, b);
  if (op == Operator::kAdd) {
    if (a.string() != nullptr && b.string() != nullptr) {
      return AddText(budget, a, b);
    }
    if (a.list() != nullptr && b.list() != nullptr && a.list()->kind == b.list()->kind) {
      return Join(budget, *a.list(), *b.list());
    }
  }
  if (op == Operator::kMultiply) {
    if ((a.string() != nullptr || a.list() != nullptr) && b.integer()) {
      return Repeat(budget, a, *b.integer());
    }
    if ((b.string() != nullptr || b.list() != nullptr) && a.integer()) {
      return Repeat(budget, b, *a.integer());
    }
  }
  if (op == Operator::kModulo && a.string() != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(std::string text, FormatPercent(budget, *a.string(), b));
    return Value(std::move(text));
  }
  return Unsupported(op, a, b);
}

absl::StatusOr<Value> Negate(const Value& value) {
  if (const auto integer = value.integer()) {
    const auto result = CalculateIntegers(Operator::kSubtract, 0, *integer);
    if (!result) return absl::InvalidArgumentError("an integer does not fit 64 bits");
    return *result;
  }
  if (const double* real = value.Get<double>()) return -*real;
  return TypeError("negate", value);
}

absl::StatusOr<bool> Compare(Budget& budget, Operator op, const Value& a, const Value& b) {
  const bool negated = op == Operator::kNotEqual || op == Operator::kNotIn;
  if (op == Operator::kEqual || op == Operator::kNotEqual) {
    MILLRACE_ASSIGN_OR_RETURN(const bool equal, Equal(budget, a, b));
    return equal != negated;
  }
  if (op == Operator::kIn || op == Operator::kNotIn) {
    MILLRACE_ASSIGN_OR_RETURN(const bool found, Contains(budget, b, a));
    return found != negated;
  }
  const bool swapped = op == Operator::kGreater || op == Operator::kGreaterEqual;
  MILLRACE_ASSIGN_OR_RETURN(const bool less, swapped ? Less(budget, b, a) : Less(budget, a, b));
  if (less || op == Operator::kLess || op == Operator::kGreater) return less;
  return Equal(budget, a, b);  // Not "neither is less": a float may be no number.
}

absl::StatusOr<Value> GetAttribute(Budget& budget, const Value& object, const String& name) {
  if (const auto* undefined = object.Get<Undefined>()) return UndefinedError(*undefined);
  if (auto method = GetMethod(object, name)) return *std::move(method);
  return GetItem(budget, object, name);
}

absl::StatusOr<Value> GetItem(Budget& budget, const Value& object, const Value& key) {
  if (const auto* undefined = object.Get<Undefined>()) return UndefinedError(*undefined);
  const String* name = key.Get<String>();
  if (const Dict* dict = object.dict()) {
    MILLRACE_ASSIGN_OR_RETURN(const Value* found, FindKey(budget, *dict, key));
    if (found != nullptr) return *found;
  }
  if (const Namespace* space = object.name_space(); space != nullptr && name != nullptr) {
    const auto found = space->attributes.find(**name);
    return found == space->attributes.end() ? Value(Undefined{*name}) : found->second;
  }
  if (name != nullptr) {
    if (object.loop() != nullptr && FindMethod(object, **name) == nullptr) {
      return LoopAttribute(*object.loop(), *name);
    }
    if (const List* list = object.list(); list != nullptr && list->is_group) {
      if (**name == "grouper") return list->items[0];
      if (**name == "list") return list->items[1];
    }
    if (const Function* function = object.function();
        function != nullptr && function->macro != nullptr) {
      return MacroAttribute(budget, *function, *name);
    }
    return GetMethod(object, *name).value_or(Undefined{*name});
  }
  const auto index = key.integer();
  if (!index) return Value();
  if (const List* list = object.list()) {
    const auto position = Position(*index, list->items.size());
    return position ? list->items[*position] : Value();
  }
  if (const std::string* text = object.string()) {
    MILLRACE_RETURN_IF_ERROR(budget.SpendText(text->size()));
    const auto position = Position(*index, CountCodePoints(*text));
    return position ? Value(CodePointRange(*text, *position, *position + 1)) : Value();
  }
  return Value();
}

absl::StatusOr<Value> GetSlice(Budget& budget, const Value& object, const Value& start,
                               const Value& stop, const Value& step) {
  const List* list = object.list();
  const std::string* text = object.string();
  if (list == nullptr && text == nullptr) return TypeError("slice", object);
  for (const Value* bound : {&start, &stop, &step}) {
    if (!bound->integer() && !bound->Is<None>()) return TypeError("slice by", *bound);
  }
  const int64_t by = step.integer().value_or(1);
  if (by == 0) return absl::InvalidArgumentError("the step of a slice must not be 0");
  MILLRACE_RETURN_IF_ERROR(text != nullptr ? budget.SpendText(text->size())
                                           : budget.Spend(list->items.size()));

  // Python's slice.indices().
  const auto size =
      static_cast<int64_t>(text != nullptr ? CountCodePoints(*text) : list->items.size());
  const int64_t least = by < 0 ? -1 : 0;
  const int64_t most = by < 0 ? size - 1 : size;
  const auto bound = [&](const Value& value, int64_t otherwise) {
    if (!value.integer()) return otherwise;
    const int64_t index = *value.integer();
    return std::clamp(index < 0 ? index + size : index, least, most);
  };
  const int64_t begin = bound(start, by < 0 ? most : least);
  const int64_t end = bound(stop, by < 0 ? least : most);
  if (text != nullptr && by == 1) {
    return Value(CodePointRange(*text, static_cast<size_t>(begin),
                                static_cast<size_t>(std::max(begin, end))));
  }
  MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(budget, object));
  std::vector<Value> chosen;
  // An unsigned stride, as -2^63 has no counterpart; one as large as the list reaches a single
  // item.
  const int64_t stride = std::clamp(by, -std::max<int64_t>(size, 1), std::max<int64_t>(size, 1));
  for (int64_t i = begin; by < 0 ? i > end : i < end; i += stride) {
    chosen.push_back(items->items[static_cast<size_t>(i)]);
  }
  if (list != nullptr) return MakeList(budget, std::move(chosen), list->kind);
  std::string result;
  for (const Value& character : chosen) result += *character.string();
  return Value(std::move(result));
}

}  // namespace millrace::jinja
