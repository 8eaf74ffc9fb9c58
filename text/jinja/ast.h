// A parsed template: immutable, shared by every rendering of it.
#ifndef MILLRACE_TEXT_JINJA_AST_H_
#define MILLRACE_TEXT_JINJA_AST_H_

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/builtin.h"
#include "text/jinja/operators.h"
#include "text/jinja/value.h"

namespace millrace::jinja {

enum class ExprKind {
  kConstant,     // value
  kName,         // value: the name
  kList,         // operands: the items
  kTuple,        // operands: the items
  kDict,         // operands: key, value, key, value…
  kAttribute,    // operands: object; value: the attribute's name
  kItem,         // operands: object, key
  kSlice,        // operands: object, start, stop, step
  kNot,          // operands: one
  kNegate,       // operands: one
  kPositive,     // operands: one
  kAnd,          // operands: two or more
  kOr,           // operands: two or more
  kConditional,  // operands: condition, value if true, value if false
  kConcat,       // operands: two or more
  kArithmetic,   // operands: a, b, c…; operators: applied from the left, (a op0 b) op1 c
  kComparison,   // operands: a, b, c…; operators: a op0 b and b op1 c
  kApply,        // value: a filter's or test's name; builtin: it; operands: self, arguments
  kCall,         // operands: what is called, arguments
};

struct Expr {
  ExprKind kind;
  int line;
  Value value;
  std::vector<std::unique_ptr<Expr>> operands;
  std::vector<Operator> operators;
  // The arguments' names; "" for one by position, "*" and "**" for a list or dict of arguments.
  std::vector<std::string> names;
  const Builtin* builtin = nullptr;  // Null for an unknown name: an error when it is evaluated.
  int depth = 1;                     // 1 + the depth of the deepest operand.
};
using ExprPtr = std::unique_ptr<Expr>;
using Exprs = std::vector<ExprPtr>;

inline ExprPtr MakeExpr(ExprKind kind, int line, Exprs operands, Value value) {
  int depth = 1;
  for (const ExprPtr& operand : operands) depth = std::max(depth, operand->depth + 1);
  return std::make_unique<Expr>(
      Expr{kind, line, std::move(value), std::move(operands), {}, {}, nullptr, depth});
}

enum class StatementKind {
  kText,   // text
  kPrint,  // exprs: one
  kIf,     // exprs: a condition a branch; bodies: one a condition, and else's if there is one
  kFor,  // exprs: what is iterated, filter (may be null); targets: one; bodies: the loop's, else's
         // (may be empty)
  kSet,  // exprs: one; targets: one
  // exprs: a filter chain on the variable kBodyVariable, which is the body's output; bodies: one
  kSetBlock,     // targets: one
  kFilterBlock,  // Prints the result
  kWith,         // exprs and targets: a variable each; bodies: one, with a scope of its own
  // text: the name; targets: the parameters; exprs: a default each (may be null); bodies: one
  kMacro,
  kCallBlock,  // The same, of the macro `caller`; then in exprs the call that it is handed to
  kBreak,
  kContinue,
};

// The place that a value is assigned to: a variable, an attribute of a namespace when `attribute`
// is not empty, or, when `unpack` is set, a tuple of targets that take one item of the value each.
struct Target {
  std::string name;
  std::string attribute;
  std::vector<Target> items;
  bool unpack = false;
};

// Which of the variables that a macro has unasked its body names: only then may they be passed.
struct MacroUses {
  bool caller = false;
  bool varargs = false;
  bool kwargs = false;
};

// No template can name it.
inline constexpr std::string_view kBodyVariable = "(body)";

struct Statement {
  StatementKind kind;
  int line;
  std::string text;
  std::vector<ExprPtr> exprs;
  std::vector<Target> targets;
  std::vector<std::vector<Statement>> bodies;
  bool recursive = false;  // A for loop that may call itself.
  MacroUses uses;
};
using Block = std::vector<Statement>;

}  // namespace millrace::jinja

#endif  // MILLRACE_TEXT_JINJA_AST_H_
