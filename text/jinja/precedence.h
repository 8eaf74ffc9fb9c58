// The precedences of operators.
#ifndef MILLRACE_TEXT_JINJA_PRECEDENCE_H_
#define MILLRACE_TEXT_JINJA_PRECEDENCE_H_

#include <string_view>

#include "text/jinja/ast.h"
#include "text/jinja/operators.h"

namespace millrace::jinja {

// From the loosest binding to the tightest.
enum Level {
  kOrLevel,
  kAndLevel,
  kNotLevel,
  kCompareLevel,
  kSumLevel,
  kConcatLevel,
  kProductLevel,
  kPowerLevel,
  kUnaryLevel
};

// The node of each level but the last. It is n-ary, so that a long chain is not a deep tree.
inline constexpr ExprKind kLevelKinds[] = {
    ExprKind::kOr,         ExprKind::kAnd,    ExprKind::kNot,        ExprKind::kComparison,
    ExprKind::kArithmetic, ExprKind::kConcat, ExprKind::kArithmetic, ExprKind::kArithmetic};

struct Sign {
  Level level;
  std::string_view text;
  bool is_word;
  Operator op;  // The node's kind says what `and`, `or` and ~ do: they have none of their own.
};

// `not in`, of two words, is the only operator that is not here.
inline constexpr Sign kSigns[] = {
    {kOrLevel, "or", true, Operator::kAdd},
    {kAndLevel, "and", true, Operator::kAdd},
    {kCompareLevel, "==", false, Operator::kEqual},
    {kCompareLevel, "!=", false, Operator::kNotEqual},
    {kCompareLevel, "<", false, Operator::kLess},
    {kCompareLevel, "<=", false, Operator::kLessEqual},
    {kCompareLevel, ">", false, Operator::kGreater},
    {kCompareLevel, ">=", false, Operator::kGreaterEqual},
    {kCompareLevel, "in", true, Operator::kIn},
    {kSumLevel, "+", false, Operator::kAdd},
    {kSumLevel, "-", false, Operator::kSubtract},
    {kConcatLevel, "~", false, Operator::kAdd},
    {kProductLevel, "*", false, Operator::kMultiply},
    {kProductLevel, "/", false, Operator::kDivide},
    {kProductLevel, "//", false, Operator::kFloorDivide},
    {kProductLevel, "%", false, Operator::kModulo},
    {kPowerLevel, "**", false, Operator::kPower},
};

}  // namespace millrace::jinja

#endif  // MILLRACE_TEXT_JINJA_PRECEDENCE_H_
