// The part of the interpreter that evaluates expressions.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "text/jinja/interpreter.h"

namespace millrace::jinja {

const Value* Interpreter::FindVariable(std::string_view name) const {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    const auto found = scope->variables.find(name);
    if (found != scope->variables.end()) return &found->second;
  }
  return nullptr;
}

absl::StatusOr<Value> Interpreter::Evaluate(const Expr& expr) {
  const Level level(*this);
  MILLRACE_RETURN_IF_ERROR(Begin(expr.line));
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.value;
    case ExprKind::kName:
      return EvaluateName(*expr.value.Get<String>());
    case ExprKind::kDict:
      return EvaluateDict(expr);
    case ExprKind::kAnd:
    case ExprKind::kOr:
      return EvaluateLogic(expr);
    case ExprKind::kConditional: {
      MILLRACE_ASSIGN_OR_RETURN(const Value condition, Evaluate(*expr.operands[0]));
      return Evaluate(*expr.operands[Truthy(condition) ? 1 : 2]);
    }
    case ExprKind::kConcat:
      return EvaluateConcat(expr);
    case ExprKind::kArithmetic:
      return EvaluateArithmetic(expr);
    case ExprKind::kComparison:
      return EvaluateComparison(expr);
    case ExprKind::kApply:
    case ExprKind::kCall:
      return EvaluateCall(expr);
    default:
      break;
  }
  MILLRACE_ASSIGN_OR_RETURN(std::vector<Value> operands, EvaluateAll(expr.operands));
  switch (expr.kind) {
    case ExprKind::kList:
    case ExprKind::kTuple:
      return MakeList(budget_, std::move(operands),
                      expr.kind == ExprKind::kTuple ? ListKind::kTuple : ListKind::kList);
    case ExprKind::kAttribute:
      return GetAttribute(budget_, operands[0], *expr.value.Get<String>());
    case ExprKind::kItem:
      return GetItem(budget_, operands[0], operands[1]);
    case ExprKind::kSlice:
      return GetSlice(budget_, operands[0], operands[1], operands[2], operands[3]);
    case ExprKind::kNegate:
      return Negate(operands[0]);
    case ExprKind::kPositive:
      return Calculate(budget_, Operator::kAdd, int64_t{0}, operands[0]);
    default:  // kNot
      return !Truthy(operands[0]);
  }
}

absl::StatusOr<std::vector<Value>> Interpreter::EvaluateAll(const Exprs& exprs) {
  std::vector<Value> values;
  values.reserve(exprs.size());
  for (const ExprPtr& expr : exprs) {
    MILLRACE_ASSIGN_OR_RETURN(Value value, Evaluate(*expr));
    values.push_back(std::move(value));
  }
  return values;
}

Value Interpreter::EvaluateName(const String& name) const {
  if (const Value* variable = FindVariable(*name)) return *variable;
  if (const Builtin* function = FindFunction(*name)) {
    return std::make_shared<const Function>(Function{*name, function});
  }
  return Undefined{name};
}

absl::StatusOr<Value> Interpreter::EvaluateDict(const Expr& expr) {
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<Value> values, EvaluateAll(expr.operands));
  std::vector<std::pair<Value, Value>> items;
  for (size_t i = 0; i < values.size(); i += 2) items.emplace_back(values[i], values[i + 1]);
  return MakeDict(budget_, std::move(items));
}

absl::StatusOr<Value> Interpreter::EvaluateLogic(const Expr& expr) {
  for (size_t i = 0;; ++i) {
    MILLRACE_ASSIGN_OR_RETURN(Value value, Evaluate(*expr.operands[i]));
    const bool decides = Truthy(value) == (expr.kind == ExprKind::kOr);
    if (decides || i + 1 == expr.operands.size()) return value;
  }
}

absl::StatusOr<Value> Interpreter::EvaluateConcat(const Expr& expr) {
  std::string result;
  for (const ExprPtr& operand : expr.operands) {
    MILLRACE_ASSIGN_OR_RETURN(const Value value, Evaluate(*operand));
    MILLRACE_ASSIGN_OR_RETURN(const std::string text, ToText(budget_, value));
    result += text;
    MILLRACE_RETURN_IF_ERROR(budget_.SpendText(result.size()));
  }
  return Value(std::move(result));
}

absl::StatusOr<Value> Interpreter::EvaluateArithmetic(const Expr& expr) {
  MILLRACE_ASSIGN_OR_RETURN(Value result, Evaluate(*expr.operands[0]));
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    MILLRACE_ASSIGN_OR_RETURN(const Value next, Evaluate(*expr.operands[i + 1]));
    MILLRACE_ASSIGN_OR_RETURN(result, Calculate(budget_, expr.operators[i], result, next));
  }
  return result;
}

absl::StatusOr<Value> Interpreter::EvaluateComparison(const Expr& expr) {
  MILLRACE_ASSIGN_OR_RETURN(Value left, Evaluate(*expr.operands[0]));
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    MILLRACE_ASSIGN_OR_RETURN(Value right, Evaluate(*expr.operands[i + 1]));
    MILLRACE_ASSIGN_OR_RETURN(const bool holds, Compare(budget_, expr.operators[i], left, right));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

absl::StatusOr<Value> Interpreter::EvaluateCall(const Expr& expr) {
  MILLRACE_ASSIGN_OR_RETURN(const Value callee, Evaluate(*expr.operands[0]));
  MILLRACE_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expr));
  line_ = expr.line;
  if (expr.kind == ExprKind::kCall) return Call(callee, std::move(arguments));
  if (expr.builtin == nullptr) {
    return absl::InvalidArgumentError(StrCat(*expr.value.string(), " is not supported"));
  }
  return CallBuiltin(context_, *expr.builtin, callee, std::move(arguments));
}

absl::StatusOr<Arguments> Interpreter::EvaluateArguments(const Expr& call) {
  Arguments arguments;
  for (size_t i = 0; i < call.names.size(); ++i) {
    const std::string& name = call.names[i];
    MILLRACE_ASSIGN_OR_RETURN(Value value, Evaluate(*call.operands[i + 1]));
    if (name.empty()) {
      arguments.positional.push_back(std::move(value));
    } else if (name == "*") {
      MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(budget_, value));
      MILLRACE_RETURN_IF_ERROR(budget_.Spend(items->items.size()));
      arguments.positional.insert(arguments.positional.end(), items->items.begin(),
                                  items->items.end());
    } else if (name == "**") {
      if (value.dict() == nullptr) return TypeError("take as named arguments", value);
      for (const auto& [key, item] : value.dict()->items) {
        MILLRACE_RETURN_IF_ERROR(budget_.Spend(1));
        if (key.string() == nullptr) return TypeError("name an argument by", key);
        arguments.named.emplace_back(*key.string(), item);
      }
    } else {
      arguments.named.emplace_back(name, std::move(value));
    }
  }
  return arguments;
}

absl::StatusOr<Value> Interpreter::Call(const Value& callee, Arguments arguments) {
  if (const Loop* loop = callee.loop()) return CallLoop(*loop, std::move(arguments));
  const Function* function = callee.function();
  if (function == nullptr) return TypeError("call", callee);
  if (function->macro != nullptr) return CallMacro(*function, std::move(arguments));
  return CallBuiltin(context_, *function->builtin, function->self, std::move(arguments));
}

absl::StatusOr<Value> Interpreter::CallMacro(const Function& function, Arguments arguments) {
  const Statement& macro = *function.macro;
  std::vector<std::string_view> names;
  for (const Target& parameter : macro.targets) names.push_back(parameter.name);
  const std::string what = StrCat("macro ", macro.text);
  MILLRACE_ASSIGN_OR_RETURN(const auto bound, BindArguments(what, names, arguments));

  Scope scope{function.scope};
  const Inside inside(*this, &scope);
  for (size_t i = 0; i < bound.size(); ++i) {
    const std::string& name = macro.targets[i].name;
    scope.variables.insert_or_assign(
        name, bound[i].value_or(Undefined{std::make_shared<const std::string>(name)}));
  }
  for (size_t i = 0; i < bound.size(); ++i) {
    if (bound[i] || macro.exprs[i] == nullptr) continue;
    MILLRACE_ASSIGN_OR_RETURN(Value value, Evaluate(*macro.exprs[i]));
    scope.variables.insert_or_assign(macro.targets[i].name, std::move(value));
  }
  MILLRACE_RETURN_IF_ERROR(BindUnasked(macro, what, std::move(arguments)));
  MILLRACE_ASSIGN_OR_RETURN(std::string text, Capture(macro.bodies.front()));
  return Value(std::move(text));
}

absl::Status Interpreter::BindUnasked(const Statement& macro, std::string_view what,
                                      Arguments arguments) {
  Variables& variables = scope_->variables;
  if (macro.uses.caller) {
    const auto is_caller = [](const auto& argument) { return argument.first == "caller"; };
    auto& named = arguments.named;
    const auto found = std::find_if(named.begin(), named.end(), is_caller);
    variables.insert_or_assign("caller", found == named.end() ? Value() : found->second);
    if (found != named.end()) named.erase(found);
  }
  if (macro.uses.varargs) {
    MILLRACE_ASSIGN_OR_RETURN(
        variables["varargs"],
        MakeList(budget_, std::exchange(arguments.positional, {}), ListKind::kTuple));
  }
  if (macro.uses.kwargs) {
    std::vector<std::pair<Value, Value>> items;
    for (auto& [name, value] : arguments.named) items.emplace_back(name, std::move(value));
    arguments.named.clear();
    MILLRACE_ASSIGN_OR_RETURN(variables["kwargs"], MakeDict(budget_, std::move(items)));
  }
  return CheckNoneLeft(what, macro.targets.size(), arguments);
}

absl::StatusOr<Value> Interpreter::CallLoop(const Loop& loop, Arguments arguments) {
  if (loop.recursive == nullptr) {
    return absl::InvalidArgumentError("a loop that is not recursive cannot be called");
  }
  MILLRACE_ASSIGN_OR_RETURN(const auto bound, BindArguments("loop", {"iterable"}, arguments));
  MILLRACE_RETURN_IF_ERROR(CheckNoneLeft("loop", 1, arguments));
  const Inside inside(*this, loop.scope);
  MILLRACE_ASSIGN_OR_RETURN(auto items, LoopItems(*loop.recursive, bound[0].value_or(Undefined())));
  std::string outer = std::exchange(output_, std::string());
  auto inner =
      std::make_shared<Loop>(Loop{std::move(items), loop.depth0 + 1, loop.recursive, loop.scope});
  MILLRACE_RETURN_IF_ERROR(RunLoop(*loop.recursive, inner).status());
  return Value(std::exchange(output_, std::move(outer)));
}

}  // namespace millrace::jinja
