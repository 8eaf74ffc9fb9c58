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

// The first seven operators. Integers have 64 bits: an overflow is an error.
absl::StatusOr<Value> Calculate(Budget& budget, Operator op, const Value& a, const Value& b);
absl::StatusOr<Value> Negate(const Value& value);
// The others.
absl::StatusOr<bool> Compare(Budget& budget, Operator op, const Value& a, const Value& b);

// `object.name`: of a dict its method of that name, then its item. Undefined if there is none, an
// error if `object` is undefined.
absl::StatusOr<Value> GetAttribute(Budget& budget, const Value& object, const String& name);
// `object[key]`: of a dict its item, then its method of that name. Otherwise as above.
absl::StatusOr<Value> GetItem(Budget& budget, const Value& object, const Value& key);
// `object[start:stop:step]`; none or an int each.
absl::StatusOr<Value> GetSlice(Budget& budget, const Value& object, const Value& start,
                               const Value& stop, const Value& step);

}  // namespace millrace::jinja

#endif  // MILLRACE_TEXT_JINJA_OPERATORS_H_
