// Renders a parsed template by walking its tree.
#ifndef MILLRACE_TEXT_JINJA_INTERPRETER_H_
#define MILLRACE_TEXT_JINJA_INTERPRETER_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/strings.h"
#include "text/jinja/ast.h"
#include "text/jinja/call.h"

namespace millrace::jinja {

using Variables = absl::flat_hash_map<std::string, Value, StringHash, std::equal_to<>>;

// The variables of a for loop's iteration, a macro's call or a block. (An if has none of its own.)
struct Scope {
  Scope* parent = nullptr;
  Variables variables = {};
};

// One rendering.
class Interpreter {
 public:
  Interpreter(Variables variables, CallContext context)
      : context_(context), global_{nullptr, std::move(variables)} {}

  // Returns the output. Errors begin with "line N: ".
  absl::StatusOr<std::string> Render(const Block& block);

 private:
  enum class Flow { kNormal, kBreak, kContinue };  // The way a block ended.

  // Makes a scope the present one for as long as this lives.
  class Inside {
   public:
    Inside(Interpreter& interpreter, Scope* scope)
        : present_(interpreter.scope_), outer_(present_) {
      present_ = scope;
    }
    ~Inside() { present_ = outer_; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Scope*& present_;
    Scope* const outer_;
  };

  // Counts how deep evaluations and executions nest: macros call each other on our own stack.
  class Level {
   public:
    explicit Level(Interpreter& interpreter) : level_(interpreter.level_) { ++level_; }
    ~Level() { --level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    int& level_;
  };

  // Begins a statement or expression: sets its line, pays its cost and checks the depth.
  absl::Status Begin(int line);

  // Statements.
  absl::StatusOr<Flow> Execute(const Block& block);
  absl::StatusOr<Flow> Execute(const Statement& statement);
  absl::StatusOr<Flow> ExecuteIf(const Statement& statement);
  absl::StatusOr<Flow> ExecuteFor(const Statement& statement);
  absl::StatusOr<Flow> ExecuteWith(const Statement& statement);
  absl::Status ExecuteCallBlock(const Statement& statement);
  // Goes over what it visits, in a scope within the present one.
  absl::StatusOr<Flow> RunLoop(const Statement& statement, const std::shared_ptr<Loop>& loop);
  absl::StatusOr<std::shared_ptr<const List>> LoopItems(const Statement& statement,
                                                        const Value& iterated);
  // Returns the output of a body, run in a scope within the present one.
  absl::StatusOr<std::string> Capture(const Block& body);
  // Returns the output of a body after the filters of its tag.
  absl::StatusOr<Value> CaptureFiltered(const Statement& statement);
  absl::Status Print(const Value& value);
  absl::Status Append(std::string_view text);
  absl::Status Assign(const Target& target, const Value& value);
  std::shared_ptr<const Function> MakeMacro(const Statement& statement);

  // Expressions.
  absl::StatusOr<Value> Evaluate(const Expr& expr);
  absl::StatusOr<std::vector<Value>> EvaluateAll(const Exprs& exprs);
  Value EvaluateName(const String& name) const;
  absl::StatusOr<Value> EvaluateDict(const Expr& expr);
  absl::StatusOr<Value> EvaluateLogic(const Expr& expr);
  absl::StatusOr<Value> EvaluateConcat(const Expr& expr);
  absl::StatusOr<Value> EvaluateArithmetic(const Expr& expr);
  absl::StatusOr<Value> EvaluateComparison(const Expr& expr);
  absl::StatusOr<Value> EvaluateCall(const Expr& expr);
  absl::StatusOr<Arguments> EvaluateArguments(const Expr& call);
  absl::StatusOr<Value> Call(const Value& callee, Arguments arguments);
  absl::StatusOr<Value> CallMacro(const Function& function, Arguments arguments);
  // Binds what the parameters left over to the variables that a macro has unasked.
  absl::Status BindUnasked(const Statement& macro, std::string_view what, Arguments arguments);
  absl::StatusOr<Value> CallLoop(const Loop& loop, Arguments arguments);
  // Returns the variable, or null if no scope has it.
  const Value* FindVariable(std::string_view name) const;

  CallContext context_;
  Budget& budget_ = context_.budget;
  Scope global_;
  Scope* scope_ = &global_;
  std::string output_;
  int line_ = 1;  // The line being rendered, for an error's message.
  int level_ = 0;
};

}  // namespace millrace::jinja

#endif  // MILLRACE_TEXT_JINJA_INTERPRETER_H_
