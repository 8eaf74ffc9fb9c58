#include "text/jinja/parser.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "text/jinja/expr_parser.h"
#include "text/jinja/lexer.h"
#include "text/jinja/token_stream.h"

namespace millrace::jinja {
namespace {

using Names = std::vector<std::string_view>;

class Parser {
 public:
  explicit Parser(TokenStream tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<Block> ParseTemplate() {
    MILLRACE_ASSIGN_OR_RETURN(Block block, ParseBlock({}));
    return block;
  }

 private:
  // Statements until one of the tags `ends`, whose name is the present token then; or until the end
  // of the template if empty.
  absl::StatusOr<Block> ParseBlock(const Names& ends);
  // The rest of a tag, the body after it, and the name of the tag that ends the body.
  absl::StatusOr<Block> ParseBody(const Names& ends);
  absl::StatusOr<Statement> ParseStatement();
  absl::StatusOr<Statement> ParseIf();
  absl::StatusOr<Statement> ParseFor();
  absl::StatusOr<Statement> ParseSet();
  absl::StatusOr<Statement> ParseFilterBlock();
  absl::StatusOr<Statement> ParseWith();
  absl::StatusOr<Statement> ParseGeneration();
  absl::StatusOr<Statement> ParseMacro();
  absl::StatusOr<Statement> ParseCallBlock();
  absl::Status ParseParameters(Statement& macro);
  // A body that no jump may leave, and its end.
  absl::Status ParseOwnBody(Statement& statement, std::string_view end);
  // Parses such a body behind its filters, which become the statement's expression.
  absl::Status ParseFilteredBody(Statement& statement, std::string_view end);
  absl::StatusOr<Statement> ParseJump(StatementKind kind);
  // Parses a variable or, with_attribute, an attribute of a namespace.
  absl::StatusOr<Target> ParseName(bool with_attribute);
  // Parses a name, or a tuple of targets in parentheses.
  absl::StatusOr<Target> ParseTarget(bool with_attribute);
  // Parses one target, or several with commas between them, which are a tuple.
  absl::StatusOr<Target> ParseTargets(bool with_attributes);

  Statement Make(StatementKind kind) const {
    Statement statement;
    statement.kind = kind;
    statement.line = tokens_.line();
    return statement;
  }

  TokenStream tokens_;
  int loops_ = 0;  // Around the present statement: break and continue need one.
};

absl::StatusOr<Block> Parser::ParseBlock(const Names& ends) {
  const Nesting nesting(tokens_);
  MILLRACE_RETURN_IF_ERROR(nesting.status());
  Block block;
  for (;;) {
    const Token& token = tokens_.Peek();
    if (token.kind == TokenKind::kEnd) {
      if (ends.empty()) return block;
      return tokens_.Error(StrCat("the template ends before ", ends.back()));
    }
    Statement statement = Make(StatementKind::kText);
    tokens_.Next();
    if (token.kind == TokenKind::kText) {
      statement.text = token.text;
    } else if (token.kind == TokenKind::kPrintBegin) {
      statement.kind = StatementKind::kPrint;
      MILLRACE_ASSIGN_OR_RETURN(ExprPtr expr, ParseTupleExpr(tokens_, /*conditional=*/true));
      statement.exprs.push_back(std::move(expr));
      MILLRACE_RETURN_IF_ERROR(tokens_.Expect(TokenKind::kPrintEnd));
    } else {
      const Token& name = tokens_.Peek();
      const bool ends_here = name.kind == TokenKind::kName &&
                             std::find(ends.begin(), ends.end(), name.text) != ends.end();
      if (ends_here) return block;
      MILLRACE_ASSIGN_OR_RETURN(statement, ParseStatement());
      MILLRACE_RETURN_IF_ERROR(tokens_.Expect(TokenKind::kStatementEnd));
    }
    block.push_back(std::move(statement));
  }
}

absl::StatusOr<Block> Parser::ParseBody(const Names& ends) {
  tokens_.TakeOperator(":");
  MILLRACE_RETURN_IF_ERROR(tokens_.Expect(TokenKind::kStatementEnd));
  return ParseBlock(ends);
}

absl::StatusOr<Statement> Parser::ParseStatement() {
  const Token& token = tokens_.Peek();
  if (token.kind != TokenKind::kName) return tokens_.Unexpected();
  if (token.text == "if") return ParseIf();
  if (token.text == "for") return ParseFor();
  if (token.text == "set") return ParseSet();
  if (token.text == "filter") return ParseFilterBlock();
  if (token.text == "with") return ParseWith();
  if (token.text == "generation") return ParseGeneration();
  if (token.text == "macro") return ParseMacro();
  if (token.text == "call") return ParseCallBlock();
  if (token.text == "break") return ParseJump(StatementKind::kBreak);
  if (token.text == "continue") return ParseJump(StatementKind::kContinue);
  constexpr std::string_view kEnds[] = {"elif",   "else",      "endif",   "endfor",
                                        "endset", "endfilter", "endwith", "endgeneration",
                                        "endraw", "endmacro",  "endcall"};
  if (std::count(std::begin(kEnds), std::end(kEnds), token.text) > 0) return tokens_.Unexpected();
  return tokens_.Unsupported(token.text);
}

absl::StatusOr<Statement> Parser::ParseIf() {
  Statement statement = Make(StatementKind::kIf);
  const Names ends = {"elif", "else", "endif"};
  const bool in_branch = std::exchange(tokens_.in_branch, true);
  do {
    tokens_.Next();  // if, elif
    MILLRACE_ASSIGN_OR_RETURN(ExprPtr condition, ParseTupleExpr(tokens_, /*conditional=*/false));
    statement.exprs.push_back(std::move(condition));
    MILLRACE_ASSIGN_OR_RETURN(Block body, ParseBody(ends));
    statement.bodies.push_back(std::move(body));
  } while (tokens_.SeesName("elif"));
  if (tokens_.TakeName("else")) {
    MILLRACE_ASSIGN_OR_RETURN(Block body, ParseBody({"endif"}));
    statement.bodies.push_back(std::move(body));
  }
  tokens_.in_branch = in_branch;
  tokens_.Next();
  return statement;
}

absl::StatusOr<Statement> Parser::ParseFor() {
  Statement statement = Make(StatementKind::kFor);
  tokens_.Next();
  const bool in_branch = std::exchange(tokens_.in_branch, false);
  MILLRACE_ASSIGN_OR_RETURN(Target target, ParseTargets(/*with_attributes=*/false));
  statement.targets.push_back(std::move(target));
  if (!tokens_.TakeName("in")) return tokens_.Unexpected();
  MILLRACE_ASSIGN_OR_RETURN(ExprPtr iterated, ParseTupleExpr(tokens_, /*conditional=*/false));
  statement.exprs.push_back(std::move(iterated));
  ExprPtr filter;
  if (tokens_.TakeName("if")) {
    MILLRACE_ASSIGN_OR_RETURN(filter, ParseExpr(tokens_));
  }
  statement.exprs.push_back(std::move(filter));
  statement.recursive = tokens_.TakeName("recursive");
  ++loops_;
  MILLRACE_ASSIGN_OR_RETURN(Block body, ParseBody({"else", "endfor"}));
  --loops_;
  statement.bodies.push_back(std::move(body));
  statement.bodies.emplace_back();
  if (tokens_.TakeName("else")) {
    MILLRACE_ASSIGN_OR_RETURN(statement.bodies.back(), ParseBody({"endfor"}));
  }
  tokens_.in_branch = in_branch;
  tokens_.Next();
  return statement;
}

absl::StatusOr<Target> Parser::ParseName(bool with_attribute) {
  Target target;
  MILLRACE_ASSIGN_OR_RETURN(target.name, tokens_.ExpectName("a variable's name"));
  if (with_attribute && tokens_.TakeOperator(".")) {
    MILLRACE_ASSIGN_OR_RETURN(target.attribute, tokens_.ExpectName("an attribute's name"));
  }
  constexpr std::string_view kConstants[] = {"true", "True", "false", "False", "none", "None"};
  if (target.name == "loop" ||
      std::count(std::begin(kConstants), std::end(kConstants), target.name) > 0) {
    return tokens_.Error(StrCat("cannot assign to ", target.name));
  }
  return target;
}

absl::StatusOr<Target> Parser::ParseTarget(bool with_attribute) {
  if (!tokens_.TakeOperator("(")) return ParseName(with_attribute);
  const Nesting nesting(tokens_);
  MILLRACE_RETURN_IF_ERROR(nesting.status());
  // Jinja takes attributes for targets at the outermost level alone.
  MILLRACE_ASSIGN_OR_RETURN(Target target, ParseTargets(/*with_attributes=*/false));
  MILLRACE_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
  return target;
}

absl::StatusOr<Target> Parser::ParseTargets(bool with_attributes) {
  Target tuple;
  tuple.unpack = true;
  MILLRACE_ASSIGN_OR_RETURN(Target target, ParseTarget(with_attributes));
  if (!tokens_.SeesOperator(",")) return target;
  tuple.items.push_back(std::move(target));
  while (tokens_.TakeOperator(",")) {
    if (tokens_.SeesOperator(")")) break;
    MILLRACE_ASSIGN_OR_RETURN(target, ParseTarget(with_attributes));
    tuple.items.push_back(std::move(target));
  }
  return tuple;
}

absl::StatusOr<Statement> Parser::ParseSet() {
  Statement statement = Make(StatementKind::kSet);
  tokens_.Next();
  MILLRACE_ASSIGN_OR_RETURN(Target target, ParseTargets(/*with_attributes=*/true));
  statement.targets.push_back(std::move(target));
  if (tokens_.TakeOperator("=")) {
    MILLRACE_ASSIGN_OR_RETURN(ExprPtr value, ParseTupleExpr(tokens_, /*conditional=*/true));
    statement.exprs.push_back(std::move(value));
    return statement;
  }
  statement.kind = StatementKind::kSetBlock;
  MILLRACE_RETURN_IF_ERROR(ParseFilteredBody(statement, "endset"));
  return statement;
}

absl::StatusOr<Statement> Parser::ParseFilterBlock() {
  Statement statement = Make(StatementKind::kFilterBlock);
  tokens_.Next();
  if (tokens_.Peek().kind != TokenKind::kName) return tokens_.Unexpected();
  MILLRACE_RETURN_IF_ERROR(ParseFilteredBody(statement, "endfilter"));
  return statement;
}

absl::StatusOr<Statement> Parser::ParseWith() {
  Statement statement = Make(StatementKind::kWith);
  tokens_.Next();
  while (tokens_.Peek().kind != TokenKind::kStatementEnd) {
    if (!statement.exprs.empty()) MILLRACE_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
    MILLRACE_ASSIGN_OR_RETURN(Target target, ParseTargets(/*with_attributes=*/false));
    statement.targets.push_back(std::move(target));
    MILLRACE_RETURN_IF_ERROR(tokens_.ExpectOperator("="));
    MILLRACE_ASSIGN_OR_RETURN(ExprPtr value, ParseExpr(tokens_));
    statement.exprs.push_back(std::move(value));
  }
  // A loop around it may be left from inside.
  MILLRACE_ASSIGN_OR_RETURN(Block body, ParseBody({"endwith"}));
  statement.bodies.push_back(std::move(body));
  tokens_.Next();
  return statement;
}

// Marks what the model wrote, for training; here it is but a scope.
absl::StatusOr<Statement> Parser::ParseGeneration() {
  Statement statement = Make(StatementKind::kWith);
  tokens_.Next();
  MILLRACE_RETURN_IF_ERROR(ParseOwnBody(statement, "endgeneration"));
  return statement;
}

absl::StatusOr<Statement> Parser::ParseMacro() {
  Statement statement = Make(StatementKind::kMacro);
  tokens_.Next();
  MILLRACE_ASSIGN_OR_RETURN(statement.text, tokens_.ExpectName("a macro's name"));
  MILLRACE_RETURN_IF_ERROR(ParseParameters(statement));
  MILLRACE_RETURN_IF_ERROR(ParseOwnBody(statement, "endmacro"));
  return statement;
}

absl::StatusOr<Statement> Parser::ParseCallBlock() {
  Statement statement = Make(StatementKind::kCallBlock);
  statement.text = "caller";
  tokens_.Next();
  if (tokens_.SeesOperator("(")) MILLRACE_RETURN_IF_ERROR(ParseParameters(statement));
  MILLRACE_ASSIGN_OR_RETURN(ExprPtr call, ParseExpr(tokens_));
  if (call->kind != ExprKind::kCall) return tokens_.Error("expected a call");
  statement.exprs.push_back(std::move(call));
  MILLRACE_RETURN_IF_ERROR(ParseOwnBody(statement, "endcall"));
  return statement;
}

absl::Status Parser::ParseParameters(Statement& macro) {
  MILLRACE_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
  while (!tokens_.SeesOperator(")")) {
    if (!macro.exprs.empty()) MILLRACE_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
    MILLRACE_ASSIGN_OR_RETURN(Target parameter, ParseName(/*with_attribute=*/false));
    const bool needs_default = !macro.exprs.empty() && macro.exprs.back() != nullptr;
    macro.targets.push_back(std::move(parameter));
    ExprPtr otherwise;
    if (tokens_.TakeOperator("=")) {
      MILLRACE_ASSIGN_OR_RETURN(otherwise, ParseExpr(tokens_));
    } else if (needs_default) {
      return tokens_.Error("a parameter without a default follows one that has a default");
    }
    macro.exprs.push_back(std::move(otherwise));
  }
  return tokens_.ExpectOperator(")");
}

absl::Status Parser::ParseOwnBody(Statement& statement, std::string_view end) {
  const int loops = std::exchange(loops_, 0);
  const bool in_branch = std::exchange(tokens_.in_branch, false);
  const MacroUses outer = std::exchange(tokens_.uses, {});
  MILLRACE_ASSIGN_OR_RETURN(Block body, ParseBody({end}));
  loops_ = loops;
  tokens_.in_branch = in_branch;
  statement.uses = tokens_.uses;
  tokens_.uses = {outer.caller || statement.uses.caller, outer.varargs || statement.uses.varargs,
                  outer.kwargs || statement.uses.kwargs};
  statement.bodies.push_back(std::move(body));
  tokens_.Next();
  return absl::OkStatus();
}

absl::Status Parser::ParseFilteredBody(Statement& statement, std::string_view end) {
  MILLRACE_ASSIGN_OR_RETURN(ExprPtr filters, ParseBodyFilters(tokens_));
  statement.exprs.push_back(std::move(filters));
  return ParseOwnBody(statement, end);
}

absl::StatusOr<Statement> Parser::ParseJump(StatementKind kind) {
  if (loops_ == 0) return tokens_.Error(StrCat(tokens_.Peek().text, " is outside a loop"));
  Statement statement = Make(kind);
  tokens_.Next();
  return statement;
}

}  // namespace

absl::StatusOr<Block> Parse(std::string_view source, const TemplateLimits& limits) {
  if (source.size() > limits.max_source_bytes) {
    return absl::InvalidArgumentError(StrCat("line 1: the template has ", source.size(),
                                             " bytes, at most ", limits.max_source_bytes,
                                             " are allowed"));
  }
  MILLRACE_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(TokenStream(std::move(tokens), limits.max_depth)).ParseTemplate();
}

}  // namespace millrace::jinja
