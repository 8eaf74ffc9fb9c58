#include "server/text/jinja_interpreter.h"

#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"

namespace millrace::jinja {
namespace {

// How a block ended.
enum class Flow { kNormal, kBreak, kContinue };

class Interpreter {
 public:
  Interpreter(Variables variables, CallContext context) : context_(context) {
    scopes_.push_back(std::move(variables));
  }

  absl::StatusOr<std::string> Run(const Block& block) {
    if (const auto flow = Execute(block); !flow.ok()) {
      return Annotate(flow.status(), StrCat("line ", line_));
    }
    return std::move(output_);
  }

 private:
  absl::StatusOr<Flow> Execute(const Block& block);
  absl::StatusOr<Flow> Execute(const Statement& statement);
  absl::StatusOr<Flow> ExecuteIf(const Statement& statement);
  absl::StatusOr<Flow> ExecuteFor(const Statement& statement);
  absl::StatusOr<std::shared_ptr<const List>> LoopItems(const Statement& statement);
  // The output of a body that has a scope of its own.
  absl::StatusOr<std::string> Capture(const Block& body);
  absl::Status Print(const Value& value);
  absl::Status Append(std::string_view text);

  absl::Status Assign(const Targets& targets, const Value& value);
  absl::Status AssignOne(const Target& target, const Value& value);
  // Null if no scope has that variable.
  const Value* FindVariable(std::string_view name) const;

  absl::StatusOr<Value> Evaluate(const Expr& expr);
  absl::StatusOr<std::vector<Value>> EvaluateAll(const Exprs& exprs);
  absl::StatusOr<Value> EvaluateName(const String& name) const;
  absl::StatusOr<Value> EvaluateDict(const Expr& expr);
  absl::StatusOr<Value> EvaluateNamespace(const Expr& expr);
  absl::StatusOr<Value> EvaluateLogic(const Expr& expr);
  absl::StatusOr<Value> EvaluateConcat(const Expr& expr);
  absl::StatusOr<Value> EvaluateArithmetic(const Expr& expr);
  absl::StatusOr<Value> EvaluateComparison(const Expr& expr);
  absl::StatusOr<Value> EvaluateCall(const Expr& expr);

  CallContext context_;
  Budget& budget_ = context_.budget;
  // Innermost last. If, unlike for, has no scope of its own.
  std::vector<Variables> scopes_;
  std::string output_;
  int line_ = 1;  // Of what is being rendered, for an error's message.
};

absl::StatusOr<Flow> Interpreter::Execute(const Block& block) {
  for (const Statement& statement : block) {
    MILLRACE_ASSIGN_OR_RETURN(const Flow flow, Execute(statement));
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

absl::StatusOr<Flow> Interpreter::Execute(const Statement& statement) {
  line_ = statement.line;
  MILLRACE_RETURN_IF_ERROR(budget_.Spend(1));
  switch (statement.kind) {
    case StatementKind::kText:
      MILLRACE_RETURN_IF_ERROR(Append(statement.text));
      break;
    case StatementKind::kPrint: {
      MILLRACE_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.exprs.front()));
      MILLRACE_RETURN_IF_ERROR(Print(value));
      break;
    }
    case StatementKind::kIf:
      return ExecuteIf(statement);
    case StatementKind::kFor:
      return ExecuteFor(statement);
    case StatementKind::kSet: {
      MILLRACE_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.exprs.front()));
      MILLRACE_RETURN_IF_ERROR(Assign(statement.targets, value));
      break;
    }
    case StatementKind::kSetBlock: {
      MILLRACE_ASSIGN_OR_RETURN(std::string text, Capture(statement.bodies.front()));
      MILLRACE_RETURN_IF_ERROR(Assign(statement.targets, std::move(text)));
      break;
    }
    case StatementKind::kGeneration: {
      MILLRACE_ASSIGN_OR_RETURN(const std::string text, Capture(statement.bodies.front()));
      MILLRACE_RETURN_IF_ERROR(Append(text));
      break;
    }
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

absl::StatusOr<Flow> Interpreter::ExecuteIf(const Statement& statement) {
  for (size_t i = 0; i < statement.exprs.size(); ++i) {
    MILLRACE_ASSIGN_OR_RETURN(const Value condition, Evaluate(*statement.exprs[i]));
    if (Truthy(condition)) return Execute(statement.bodies[i]);
  }
  const bool has_else = statement.bodies.size() > statement.exprs.size();
  return has_else ? Execute(statement.bodies.back()) : Flow::kNormal;
}

absl::StatusOr<std::shared_ptr<const List>> Interpreter::LoopItems(const Statement& statement) {
  MILLRACE_ASSIGN_OR_RETURN(const Value iterated, Evaluate(*statement.exprs[0]));
  MILLRACE_ASSIGN_OR_RETURN(auto items, Iterate(budget_, iterated));
  if (statement.exprs[1] == nullptr) return items;
  std::vector<Value> kept;
  for (const Value& item : items->items) {
    scopes_.emplace_back();
    MILLRACE_RETURN_IF_ERROR(Assign(statement.targets, item));
    MILLRACE_ASSIGN_OR_RETURN(const Value keep, Evaluate(*statement.exprs[1]));
    scopes_.pop_back();
    if (Truthy(keep)) kept.push_back(item);
  }
  return std::make_shared<const List>(List{std::move(kept), false, items->depth});
}

absl::StatusOr<Flow> Interpreter::ExecuteFor(const Statement& statement) {
  MILLRACE_ASSIGN_OR_RETURN(const auto items, LoopItems(statement));
  const auto loop = std::make_shared<Loop>(Loop{items, 0});
  // Jinja runs `else` unless some iteration reached its end: also when each was left by break or
  // continue.
  bool completed = false;
  scopes_.emplace_back();
  for (; loop->index0 < items->items.size(); ++loop->index0) {
    MILLRACE_RETURN_IF_ERROR(budget_.Spend(1));
    scopes_.back().clear();  // What an iteration sets is gone in the next.
    MILLRACE_RETURN_IF_ERROR(Assign(statement.targets, items->items[loop->index0]));
    scopes_.back()["loop"] = loop;
    MILLRACE_ASSIGN_OR_RETURN(const Flow flow, Execute(statement.bodies[0]));
    completed = completed || flow == Flow::kNormal;
    if (flow == Flow::kBreak) break;
  }
  scopes_.pop_back();
  return completed ? Flow::kNormal : Execute(statement.bodies[1]);
}

absl::StatusOr<std::string> Interpreter::Capture(const Block& body) {
  std::string outer = std::exchange(output_, std::string());
  scopes_.emplace_back();
  MILLRACE_RETURN_IF_ERROR(Execute(body).status());
  scopes_.pop_back();
  return std::exchange(output_, std::move(outer));
}

absl::Status Interpreter::Append(std::string_view text) {
  MILLRACE_RETURN_IF_ERROR(budget_.SpendText(text.size()));
  if (text.size() > budget_.limits().max_output_bytes - output_.size()) {
    return absl::InvalidArgumentError(
        StrCat("the output is over ", budget_.limits().max_output_bytes, " bytes"));
  }
  output_.append(text);
  return absl::OkStatus();
}

absl::Status Interpreter::Print(const Value& value) {
  if (const std::string* text = value.string()) return Append(*text);
  MILLRACE_ASSIGN_OR_RETURN(const std::string text, ToText(budget_, value));
  return Append(text);
}

absl::Status Interpreter::Assign(const Targets& targets, const Value& value) {
  if (!targets.unpack) return AssignOne(targets.items.front(), value);
  MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(budget_, value));
  if (items->items.size() != targets.items.size()) {
    return absl::InvalidArgumentError(StrCat("cannot assign ", items->items.size(), " values to ",
                                             targets.items.size(), " variables"));
  }
  for (size_t i = 0; i < targets.items.size(); ++i) {
    MILLRACE_RETURN_IF_ERROR(AssignOne(targets.items[i], items->items[i]));
  }
  return absl::OkStatus();
}

absl::Status Interpreter::AssignOne(const Target& target, const Value& value) {
  if (target.attribute.empty()) {
    scopes_.back().insert_or_assign(target.name, value);
    return absl::OkStatus();
  }
  const Value* variable = FindVariable(target.name);
  if (variable == nullptr || variable->name_space() == nullptr) {
    return absl::InvalidArgumentError(
        StrCat("cannot assign to an attribute of '", target.name, "', which is no namespace"));
  }
  MILLRACE_RETURN_IF_ERROR(CheckStorable(value));
  variable->name_space()->attributes.insert_or_assign(target.attribute, value);
  return absl::OkStatus();
}

const Value* Interpreter::FindVariable(std::string_view name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto found = scope->find(name); found != scope->end()) return &found->second;
  }
  return nullptr;
}

absl::StatusOr<Value> Interpreter::Evaluate(const Expr& expr) {
  line_ = expr.line;
  MILLRACE_RETURN_IF_ERROR(budget_.Spend(1));
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.value;
    case ExprKind::kName:
      return EvaluateName(*expr.value.Get<String>());
    case ExprKind::kDict:
      return EvaluateDict(expr);
    case ExprKind::kNamespace:
      return EvaluateNamespace(expr);
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
    case ExprKind::kCall:
      return EvaluateCall(expr);
    default:
      break;
  }
  MILLRACE_ASSIGN_OR_RETURN(std::vector<Value> operands, EvaluateAll(expr.operands));
  switch (expr.kind) {
    case ExprKind::kList:
    case ExprKind::kTuple:
      return MakeList(budget_, std::move(operands), expr.kind == ExprKind::kTuple);
    case ExprKind::kAttribute:
      return GetAttribute(budget_, operands[0], *expr.value.Get<String>());
    case ExprKind::kItem:
      return GetItem(budget_, operands[0], operands[1]);
    case ExprKind::kSlice:
      return GetSlice(budget_, operands[0], operands[1], operands[2], operands[3]);
    case ExprKind::kNegate:
      return Negate(operands[0]);
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

absl::StatusOr<Value> Interpreter::EvaluateName(const String& name) const {
  if (const Value* variable = FindVariable(*name)) return *variable;
  if (*name == "namespace" || FindFunction(*name) != nullptr) return Function{name};
  return Undefined{name};
}

absl::StatusOr<Value> Interpreter::EvaluateDict(const Expr& expr) {
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<Value> values, EvaluateAll(expr.operands));
  std::vector<std::pair<Value, Value>> items;
  for (size_t i = 0; i < values.size(); i += 2) items.emplace_back(values[i], values[i + 1]);
  return MakeDict(budget_, std::move(items));
}

absl::StatusOr<Value> Interpreter::EvaluateNamespace(const Expr& expr) {
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<Value> values, EvaluateAll(expr.operands));
  auto result = std::make_shared<Namespace>();
  for (size_t i = 0; i < values.size(); i += 2) {
    MILLRACE_RETURN_IF_ERROR(CheckStorable(values[i + 1]));
    result->attributes.insert_or_assign(*values[i].string(), values[i + 1]);
  }
  return result;
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
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<Value> operands, EvaluateAll(expr.operands));
  line_ = expr.line;
  return expr.builtin->run(context_, operands[0], absl::MakeConstSpan(operands).subspan(1));
}

}  // namespace

absl::StatusOr<std::string> Render(const Block& block, Variables variables, CallContext context) {
  return Interpreter(std::move(variables), context).Run(block);
}

}  // namespace millrace::jinja
