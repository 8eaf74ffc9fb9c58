// A parsed template: immutable, shared by every rendering of it.
#ifndef MILLRACE_SERVER_TEXT_JINJA_AST_H_
#define MILLRACE_SERVER_TEXT_JINJA_AST_H_

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/text/jinja_builtin.h"
#include "server/text/jinja_operators.h"
#include "server/text/jinja_value.h"

namespace millrace::jinja {

enum class ExprKind {
  kConstant,     // value
  kName,         // value: the name
  kList,         // operands: the items
  kTuple,        // operands: the items
  kDict,         // operands: key, value, key, value…
  kNamespace,    // operands as in kDict, the keys constant strings
  kAttribute,    // operands: object; value: the attribute's name
  kItem,         // operands: object, key
  kSlice,        // operands: object, start, stop, step
  kNot,          // operands: one
  kNegate,       // operands: one
  kAnd,          // operands: two or more
  kOr,           // operands: two or more
  kConditional,  // operands: condition, value if true, value if false
  kConcat,       // operands: two or more
  kArithmetic,   // operands: a, b, c…; operators: applied from the left, (a op0 b) op1 c
  kComparison,   // operands: a, b, c…; operators: a op0 b and b op1 c
  kCall,  // builtin: a filter, test, method or function; operands: self, then an argument for each
          // parameter
};

struct Expr {
  ExprKind kind;
  int line;
  Value value;
  std::vector<std::unique_ptr<Expr>> operands;
  std::vector<Operator> operators;
  const Builtin* builtin = nullptr;
  int depth = 1;  // 1 + that of the deepest operand.
};
using ExprPtr = std::unique_ptr<Expr>;
using Exprs = std::vector<ExprPtr>;

inline ExprPtr MakeExpr(ExprKind kind, int line, Exprs operands, Value value) {
  int depth = 1;
  for (const ExprPtr& operand : operands) depth = std::max(depth, operand->depth + 1);
  return std::make_unique<Expr>(
      Expr{kind, line, std::move(value), std::move(operands), {}, nullptr, depth});
}

enum class StatementKind {
  kText,   // text
  kPrint,  // exprs: one
  kIf,     // exprs: a condition a branch; bodies: one a condition, and that of else if there is one
  kFor,  // exprs: what is iterated, filter (may be null); targets; bodies: the loop's, else's (may
         // be empty)
  kSet,  // exprs: one; targets
  kSetBlock,    // targets: one; bodies: one
  kGeneration,  // bodies: one. Marks what the model wrote, for training; prints its body
  kBreak,
  kContinue,
};

// A variable, or an attribute of a namespace when `attribute` is not empty.
struct Target {
  std::string name;
  std::string attribute;
};
struct Targets {
  std::vector<Target> items;
  bool unpack = false;  // Assigns the items of the value, one each.
};

struct Statement {
  StatementKind kind;
  int line;
  std::string text;
  std::vector<ExprPtr> exprs;
  Targets targets;
  std::vector<std::vector<Statement>> bodies;
};
using Block = std::vector<Statement>;

}  // namespace millrace::jinja

#endif  // MILLRACE_SERVER_TEXT_JINJA_AST_H_
