#include "text/jinja/interpreter.h"

#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"

namespace millrace::jinja {

absl::StatusOr<std::string> Interpreter::Render(const Block& block) {
  if (const auto flow = Execute(block); !flow.ok()) {
    return Annotate(flow.status(), StrCat("line ", line_));
  }
  return std::move(output_);
}

absl::Status Interpreter::Begin(int line) {
  line_ = line;
  if (level_ > budget_.limits().max_call_depth) {
    return absl::InvalidArgumentError(StrCat("macros or loops call each other deeper than ",
                                             budget_.limits().max_call_depth,
                                             " levels of statements and expressions"));
  }
  return budget_.Spend(1);
}

absl::StatusOr<Interpreter::Flow> Interpreter::Execute(const Block& block) {
  for (const Statement& statement : block) {
    MILLRACE_ASSIGN_OR_RETURN(const Flow flow, Execute(statement));
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

absl::StatusOr<Interpreter::Flow> Interpreter::Execute(const Statement& statement) {
  const Level level(*this);
  MILLRACE_RETURN_IF_ERROR(Begin(statement.line));
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
      MILLRACE_RETURN_IF_ERROR(Assign(statement.targets.front(), value));
      break;
    }
    case StatementKind::kSetBlock: {
      MILLRACE_ASSIGN_OR_RETURN(const Value value, CaptureFiltered(statement));
      MILLRACE_RETURN_IF_ERROR(Assign(statement.targets.front(), value));
      break;
    }
    case StatementKind::kFilterBlock: {
      MILLRACE_ASSIGN_OR_RETURN(const Value value, CaptureFiltered(statement));
      MILLRACE_RETURN_IF_ERROR(Print(value));
      break;
    }
    case StatementKind::kWith:
      return ExecuteWith(statement);
    case StatementKind::kMacro:
      scope_->variables.insert_or_assign(statement.text, MakeMacro(statement));
      break;
    case StatementKind::kCallBlock:
      MILLRACE_RETURN_IF_ERROR(ExecuteCallBlock(statement));
      break;
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteIf(const Statement& statement) {
  for (size_t i = 0; i < statement.exprs.size(); ++i) {
    MILLRACE_ASSIGN_OR_RETURN(const Value condition, Evaluate(*statement.exprs[i]));
    if (Truthy(condition)) return Execute(statement.bodies[i]);
  }
  const bool has_else = statement.bodies.size() > statement.exprs.size();
  return has_else ? Execute(statement.bodies.back()) : Flow::kNormal;
}

absl::StatusOr<std::shared_ptr<const List>> Interpreter::LoopItems(const Statement& statement,
                                                                   const Value& iterated) {
  MILLRACE_ASSIGN_OR_RETURN(auto items, Iterate(budget_, iterated));
  if (statement.exprs[1] == nullptr) return items;
  std::vector<Value> kept;
  Scope scope{scope_};
  const Inside inside(*this, &scope);
  for (const Value& item : items->items) {
    scope.variables.clear();
    MILLRACE_RETURN_IF_ERROR(Assign(statement.targets.front(), item));
    MILLRACE_ASSIGN_OR_RETURN(const Value keep, Evaluate(*statement.exprs[1]));
    if (Truthy(keep)) kept.push_back(item);
  }
  return std::make_shared<const List>(List{std::move(kept), ListKind::kList, items->depth});
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteFor(const Statement& statement) {
  MILLRACE_ASSIGN_OR_RETURN(const Value iterated, Evaluate(*statement.exprs[0]));
  MILLRACE_ASSIGN_OR_RETURN(auto items, LoopItems(statement, iterated));
  const Statement* recursive = statement.recursive ? &statement : nullptr;
  return RunLoop(statement, std::make_shared<Loop>(Loop{std::move(items), 0, recursive, scope_}));
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunLoop(const Statement& statement,
                                                       const std::shared_ptr<Loop>& loop) {
  // Jinja runs `else` unless some iteration reached its end: also when each was left by break or
  // continue.
  bool completed = false;
  Scope scope{scope_};
  const Inside inside(*this, &scope);
  for (; loop->index0 < loop->items->items.size(); ++loop->index0) {
    MILLRACE_RETURN_IF_ERROR(budget_.Spend(1));
    scope.variables.clear();  // Variables of an iteration end with it.
    MILLRACE_RETURN_IF_ERROR(Assign(statement.targets.front(), loop->items->items[loop->index0]));
    scope.variables["loop"] = loop;
    MILLRACE_ASSIGN_OR_RETURN(const Flow flow, Execute(statement.bodies[0]));
    completed = completed || flow == Flow::kNormal;
    if (flow == Flow::kBreak) break;
  }
  scope.variables.clear();
  return completed ? Flow::kNormal : Execute(statement.bodies[1]);
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteWith(const Statement& statement) {
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<Value> values, EvaluateAll(statement.exprs));
  Scope scope{scope_};
  const Inside inside(*this, &scope);
  for (size_t i = 0; i < values.size(); ++i) {
    MILLRACE_RETURN_IF_ERROR(Assign(statement.targets[i], values[i]));
  }
  return Execute(statement.bodies.front());
}

std::shared_ptr<const Function> Interpreter::MakeMacro(const Statement& statement) {
  return std::make_shared<const Function>(
      Function{.name = statement.text, .macro = &statement, .scope = scope_});
}

absl::Status Interpreter::ExecuteCallBlock(const Statement& statement) {
  const Expr& call = *statement.exprs.back();
  MILLRACE_ASSIGN_OR_RETURN(const Value callee, Evaluate(*call.operands[0]));
  MILLRACE_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(call));
  arguments.named.emplace_back("caller", MakeMacro(statement));
  line_ = call.line;
  MILLRACE_ASSIGN_OR_RETURN(const Value result, Call(callee, std::move(arguments)));
  return Print(result);
}

absl::StatusOr<std::string> Interpreter::Capture(const Block& body) {
  std::string outer = std::exchange(output_, std::string());
  Scope scope{scope_};
  const Inside inside(*this, &scope);
  MILLRACE_RETURN_IF_ERROR(Execute(body).status());
  return std::exchange(output_, std::move(outer));
}

absl::StatusOr<Value> Interpreter::CaptureFiltered(const Statement& statement) {
  MILLRACE_ASSIGN_OR_RETURN(std::string text, Capture(statement.bodies.front()));
  Scope scope{scope_, {{std::string(kBodyVariable), std::move(text)}}};
  const Inside inside(*this, &scope);
  return Evaluate(*statement.exprs.front());
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

absl::Status Interpreter::Assign(const Target& target, const Value& value) {
  if (target.unpack) {
    MILLRACE_ASSIGN_OR_RETURN(const auto items, Iterate(budget_, value));
    if (items->items.size() != target.items.size()) {
      return absl::InvalidArgumentError(StrCat("cannot assign ", items->items.size(), " values to ",
                                               target.items.size(), " variables"));
    }
    for (size_t i = 0; i < target.items.size(); ++i) {
      MILLRACE_RETURN_IF_ERROR(Assign(target.items[i], items->items[i]));
    }
    return absl::OkStatus();
  }
  if (target.attribute.empty()) {
    scope_->variables.insert_or_assign(target.name, value);
    return absl::OkStatus();
  }
  const Value* variable = FindVariable(target.name);
  if (variable == nullptr || variable->name_space() == nullptr) {
    return absl::InvalidArgumentError(
        StrCat("cannot assign to an attribute of '", target.name, "', which is no namespace"));
  }
  return SetAttribute(*variable->name_space(), target.attribute, value);
}

}  // namespace millrace::jinja
