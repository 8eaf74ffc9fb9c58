// Python's operators on values.
#ifndef MILLRACE_TEXT_JINJA_OPERATORS_H_
#define MILLRACE_TEXT_JINJA_OPERATORS_H_

#include "absl/status/statusor.h"
#include "text/jinja/value.h"

namespace millrace::jinja {

enum class Operator {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

// Computes the first seven operators. Integers have 64 bits: an overflow is an error.
absl::StatusOr<Value> Calculate(Budget& budget, Operator op, const Value& a, const Value& b);
absl::StatusOr<Value> Negate(const Value& value);
// Computes the other operators.
absl::StatusOr<bool> Compare(Budget& budget, Operator op, const Value& a, const Value& b);

// Returns `object.name`; for a dict, its method of that name, then its item. Returns undefined if
// there is none, an error if `object` is undefined.
absl::StatusOr<Value> GetAttribute(Budget& budget, const Value& object, const String& name);
// Returns `object[key]`; for a dict, its item, then its method of that name. Otherwise as
// GetAttribute.
absl::StatusOr<Value> GetItem(Budget& budget, const Value& object, const Value& key);
// Returns `object[start:stop:step]`, each of which is none or an int.
absl::StatusOr<Value> GetSlice(Budget& budget, const Value& object, const Value& start,
                               const Value& stop, const Value& step);

}  // namespace millrace::jinja

#endif  // MILLRACE_TEXT_JINJA_OPERATORS_H_
