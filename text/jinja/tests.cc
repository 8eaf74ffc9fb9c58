// The tests, `value is name` and `value is name(argument)`.
#include "base/status.h"
#include "text/jinja/builtin.h"
#include "text/jinja/operators.h"

namespace millrace::jinja {
namespace {

using Args = absl::Span<const Value>;

// Makes a test of a predicate on the value.
template <bool (*kPredicate)(const Value&)>
absl::StatusOr<Value> Test(CallContext&, const Value& self, Args) {
  return Value(kPredicate(self));
}

template <typename T>
bool HasType(const Value& value) {
  return value.Is<T>();
}
bool IsInteger(const Value& value) {
  return value.Is<int64_t>() || value.Is<uint64_t>() || value.Is<Value::LongInteger>();
}
bool IsDefined(const Value& value) { return !value.Is<Undefined>(); }
bool IsString(const Value& value) { return value.string() != nullptr; }
bool IsMapping(const Value& value) { return value.dict() != nullptr; }
bool IsNumber(const Value& value) { return value.number().has_value(); }
// An undefined value has a length and visits nothing, so it is both iterable and a sequence.
bool IsSequence(const Value& value) {
  return value.string() != nullptr || value.list() != nullptr || value.dict() != nullptr ||
         value.Is<Undefined>();
}
bool IsIterable(const Value& value) {
  return IsSequence(value) || value.Is<std::shared_ptr<const List>>() || value.loop() != nullptr;
}
bool IsCallable(const Value& value) {
  return value.function() != nullptr || value.loop() != nullptr;
}
template <bool kWanted>
bool IsBoolean(const Value& value) {
  return value.Is<bool>() && *value.Get<bool>() == kWanted;
}

template <Operator kOperator>
absl::StatusOr<Value> Compares(CallContext& context, const Value& self, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const bool result, Compare(context.budget, kOperator, self, args[0]));
  return Value(result);
}

// "a is b" of Python, where what is equal and of one type is the same thing.
absl::StatusOr<Value> SameAs(CallContext& context, const Value& self, Args args) {
  if (TypeName(self) != TypeName(args[0])) return Value(false);
  return Compares<Operator::kEqual>(context, self, args);
}

template <bool kUpper>
absl::StatusOr<Value> HasCaseOf(CallContext& context, const Value& self, Args) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string text, ToText(context.budget, self));
  return Value(HasCase(text, kUpper));
}

template <const Builtin* (*kFind)(std::string_view)>
absl::StatusOr<Value> IsNameOf(CallContext&, const Value& self, Args) {
  return Value(self.string() != nullptr && kFind(*self.string()) != nullptr);
}

absl::StatusOr<Value> RemainderIs(Budget& budget, const Value& self, const Value& divisor,
                                  int64_t remainder) {
  MILLRACE_ASSIGN_OR_RETURN(const Value actual,
                            Calculate(budget, Operator::kModulo, self, divisor));
  MILLRACE_ASSIGN_OR_RETURN(const bool equal, Equal(budget, actual, remainder));
  return Value(equal);
}

template <int64_t kRemainder>
absl::StatusOr<Value> Parity(CallContext& context, const Value& self, Args) {
  return RemainderIs(context.budget, self, int64_t{2}, kRemainder);
}

absl::StatusOr<Value> DivisibleBy(CallContext& context, const Value& self, Args args) {
  return RemainderIs(context.budget, self, args[0], 0);
}

}  // namespace

const Builtin* FindTest(std::string_view name) {
  static const auto& table = *[] {
    const std::vector<Parameter> other = {{"other", true}};
    return new std::vector<Builtin>{
        {"boolean", {}, Test<HasType<bool>>},
        {"callable", {}, Test<IsCallable>},
        {"defined", {}, Test<IsDefined>},
        {"divisibleby", {{"num", true}}, DivisibleBy},
        {"escaped", {}, Test<HasType<Markup>>},
        {"even", {}, Parity<0>},
        {"false", {}, Test<IsBoolean<false>>},
        {"filter", {}, IsNameOf<FindFilter>},
        {"float", {}, Test<HasType<double>>},
        {"in", {{"seq", true}}, Compares<Operator::kIn>},
        {"integer", {}, Test<IsInteger>},
        {"iterable", {}, Test<IsIterable>},
        {"lower", {}, HasCaseOf<false>},
        {"mapping", {}, Test<IsMapping>},
        {"none", {}, Test<HasType<None>>},
        {"number", {}, Test<IsNumber>},
        {"odd", {}, Parity<1>},
        {"sequence", {}, Test<IsSequence>},
        {"sameas", other, SameAs},
        {"string", {}, Test<IsString>},
        {"test", {}, IsNameOf<FindTest>},
        {"true", {}, Test<IsBoolean<true>>},
        {"undefined", {}, Test<HasType<Undefined>>},
        {"upper", {}, HasCaseOf<true>},
        // The comparisons go by several names each.
        {"eq", other, Compares<Operator::kEqual>},
        {"equalto", other, Compares<Operator::kEqual>},
        {"==", other, Compares<Operator::kEqual>},
        {"ne", other, Compares<Operator::kNotEqual>},
        {"!=", other, Compares<Operator::kNotEqual>},
        {"lt", other, Compares<Operator::kLess>},
        {"lessthan", other, Compares<Operator::kLess>},
        {"<", other, Compares<Operator::kLess>},
        {"le", other, Compares<Operator::kLessEqual>},
        {"<=", other, Compares<Operator::kLessEqual>},
        {"gt", other, Compares<Operator::kGreater>},
        {"greaterthan", other, Compares<Operator::kGreater>},
        {">", other, Compares<Operator::kGreater>},
        {"ge", other, Compares<Operator::kGreaterEqual>},
        {">=", other, Compares<Operator::kGreaterEqual>},
    };
  }();
  return FindIn(table, name);
}

}  // namespace millrace::jinja
