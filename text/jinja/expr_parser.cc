#include "text/jinja/expr_parser.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/status.h"
#include "base/strings.h"
#include "text/jinja/precedence.h"
#include "text/jinja/text.h"

namespace millrace::jinja {
namespace {

class ExprParser {
 public:
  explicit ExprParser(TokenStream& tokens) : tokens_(tokens) {}

  absl::StatusOr<ExprPtr> ParseTuple(bool conditional, bool in_parentheses);
  absl::StatusOr<ExprPtr> ParseConditional();
  absl::StatusOr<ExprPtr> ParseBodyFilters();

 private:
  absl::StatusOr<ExprPtr> ParseLevel(int level);
  absl::StatusOr<ExprPtr> ParseUnary(bool with_filters);
  absl::StatusOr<ExprPtr> ParsePrimary();
  absl::StatusOr<ExprPtr> ParsePostfix(ExprPtr expr);
  absl::StatusOr<ExprPtr> ParseFilters(ExprPtr expr);
  absl::StatusOr<ExprPtr> ParseFilter(ExprPtr expr);
  absl::StatusOr<ExprPtr> ParseTest(ExprPtr expr);
  absl::StatusOr<ExprPtr> ParseSubscript(ExprPtr expr);
  absl::StatusOr<ExprPtr> ParseNumber();
  absl::StatusOr<ExprPtr> ParseList();
  absl::StatusOr<ExprPtr> ParseDict();
  absl::Status ParseArguments(Exprs& operands, std::vector<std::string>& names);

  // The operator of a level at the present token, which it passes.
  std::optional<Operator> TakeOperator(int level);

  absl::StatusOr<ExprPtr> Make(ExprKind kind, int line, Exprs operands, Value value = {}) {
    ExprPtr expr = MakeExpr(kind, line, std::move(operands), std::move(value));
    MILLRACE_RETURN_IF_ERROR(tokens_.CheckDepth(expr->depth));
    return expr;
  }
  absl::StatusOr<ExprPtr> Constant(Value value) {
    return Make(ExprKind::kConstant, tokens_.line(), {}, std::move(value));
  }
  absl::StatusOr<ExprPtr> MakeCall(ExprKind kind, int line, Exprs operands,
                                   std::vector<std::string> names, Value name = {}) {
    MILLRACE_ASSIGN_OR_RETURN(ExprPtr call, Make(kind, line, std::move(operands), std::move(name)));
    call->names = std::move(names);
    return call;
  }
  // `kind` and `find`: those of filters, or of tests.
  absl::StatusOr<ExprPtr> MakeApply(int line, std::string_view kind,
                                    const Builtin* (*find)(std::string_view),
                                    const std::string& name, Exprs operands,
                                    std::vector<std::string> names) {
    const Builtin* builtin = find(name);
    const std::string shown = StrCat(kind, " ", name.substr(0, 100));
    if (builtin == nullptr && !tokens_.in_branch) {
      return TokenStream::ErrorAt(line, StrCat(shown, " is not supported"));
    }
    MILLRACE_ASSIGN_OR_RETURN(ExprPtr apply, MakeCall(ExprKind::kApply, line, std::move(operands),
                                                      std::move(names), shown));
    apply->builtin = builtin;
    return apply;
  }
  template <typename... T>
  static Exprs Operands(T... exprs) {
    Exprs operands;
    (operands.push_back(std::move(exprs)), ...);
    return operands;
  }

  TokenStream& tokens_;
};

absl::StatusOr<ExprPtr> ExprParser::ParseTuple(bool conditional, bool in_parentheses) {
  const int line = tokens_.line();
  Exprs items;
  bool is_tuple = false;
  const auto ends = [this] {
    const TokenKind kind = tokens_.Peek().kind;
    return kind == TokenKind::kPrintEnd || kind == TokenKind::kStatementEnd ||
           tokens_.SeesOperator(")");
  };
  while (!ends()) {
    MILLRACE_ASSIGN_OR_RETURN(ExprPtr item,
                              conditional ? ParseConditional() : ParseLevel(kOrLevel));
    items.push_back(std::move(item));
    if (!tokens_.TakeOperator(",")) break;
    is_tuple = true;
  }
  if (items.size() == 1 && !is_tuple) return std::move(items.front());
  if (items.empty() && !in_parentheses) return tokens_.Error("an expression is missing");
  return Make(ExprKind::kTuple, line, std::move(items));
}

absl::StatusOr<ExprPtr> ExprParser::ParseConditional() {
  const Nesting nesting(tokens_);
  MILLRACE_RETURN_IF_ERROR(nesting.status());
  MILLRACE_ASSIGN_OR_RETURN(ExprPtr expr, ParseLevel(kOrLevel));
  while (tokens_.SeesName("if")) {
    const int line = tokens_.Next().line;
    MILLRACE_ASSIGN_OR_RETURN(ExprPtr condition, ParseLevel(kOrLevel));
    ExprPtr otherwise;
    if (tokens_.TakeName("else")) {
      MILLRACE_ASSIGN_OR_RETURN(otherwise, ParseConditional());
    } else {
      MILLRACE_ASSIGN_OR_RETURN(otherwise, Constant(Undefined()));
    }
    MILLRACE_ASSIGN_OR_RETURN(
        expr, Make(ExprKind::kConditional, line,
                   Operands(std::move(condition), std::move(expr), std::move(otherwise))));
  }
  return expr;
}

std::optional<Operator> ExprParser::TakeOperator(int level) {
  for (const Sign& sign : kSigns) {
    if (sign.level != level) continue;
    if (sign.is_word ? tokens_.TakeName(sign.text) : tokens_.TakeOperator(sign.text)) {
      return sign.op;
    }
  }
  if (level == kCompareLevel && tokens_.SeesName("not") &&
      tokens_.Peek(1).Is(TokenKind::kName, "in")) {
    tokens_.Next();
    tokens_.Next();
    return Operator::kNotIn;
  }
  return std::nullopt;
}

absl::StatusOr<ExprPtr> ExprParser::ParseLevel(int level) {
  if (level == kUnaryLevel) return ParseUnary(/*with_filters=*/true);
  const int line = tokens_.line();
  if (level == kNotLevel) {
    if (!tokens_.TakeName("not")) return ParseLevel(level + 1);
    const Nesting nesting(tokens_);
    MILLRACE_RETURN_IF_ERROR(nesting.status());
    MILLRACE_ASSIGN_OR_RETURN(ExprPtr operand, ParseLevel(level));
    return Make(ExprKind::kNot, line, Operands(std::move(operand)));
  }
  MILLRACE_ASSIGN_OR_RETURN(ExprPtr first, ParseLevel(level + 1));
  Exprs operands = Operands(std::move(first));
  std::vector<Operator> operators;
  while (const auto op = TakeOperator(level)) {
    operators.push_back(*op);
    MILLRACE_ASSIGN_OR_RETURN(ExprPtr next, ParseLevel(level + 1));
    operands.push_back(std::move(next));
  }
  if (operators.empty()) return std::move(operands.front());
  MILLRACE_ASSIGN_OR_RETURN(ExprPtr expr, Make(kLevelKinds[level], line, std::move(operands)));
  expr->operators = std::move(operators);
  return expr;
}

absl::StatusOr<ExprPtr> ExprParser::ParseUnary(bool with_filters) {
  const int line = tokens_.line();
  ExprPtr expr;
  if (tokens_.SeesOperator("-") || tokens_.SeesOperator("+")) {
    const ExprKind kind = tokens_.Next().text == "-" ? ExprKind::kNegate : ExprKind::kPositive;
    const Nesting nesting(tokens_);
    MILLRACE_RETURN_IF_ERROR(nesting.status());
    MILLRACE_ASSIGN_OR_RETURN(expr, ParseUnary(/*with_filters=*/false));
    MILLRACE_ASSIGN_OR_RETURN(expr, Make(kind, line, Operands(std::move(expr))));
  } else {
    MILLRACE_ASSIGN_OR_RETURN(expr, ParsePrimary());
  }
  MILLRACE_ASSIGN_OR_RETURN(expr, ParsePostfix(std::move(expr)));
  if (!with_filters) return expr;
  return ParseFilters(std::move(expr));
}

absl::StatusOr<ExprPtr> ExprParser::ParsePrimary() {
  const Token& token = tokens_.Peek();
  if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) return ParseNumber();
  if (token.kind == TokenKind::kString) {
    std::string text;
    while (tokens_.Peek().kind == TokenKind::kString) text += tokens_.Next().text;
    return Constant(std::move(text));
  }
  if (token.kind == TokenKind::kName) {
    const int line = token.line;
    const std::string& name = tokens_.Next().text;
    if (name == "true" || name == "True") return Constant(true);
    if (name == "false" || name == "False") return Constant(false);
    if (name == "none" || name == "None") return Constant(None());
    tokens_.uses.caller |= name == "caller";
    tokens_.uses.varargs |= name == "varargs";
    tokens_.uses.kwargs |= name == "kwargs";
    return Make(ExprKind::kName, line, {}, name);
  }
  if (tokens_.TakeOperator("(")) {
    MILLRACE_ASSIGN_OR_RETURN(ExprPtr expr, ParseTuple(true, /*in_parentheses=*/true));
    MILLRACE_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
    return expr;
  }
  if (tokens_.SeesOperator("[")) return ParseList();
  if (tokens_.SeesOperator("{")) return ParseDict();
  return tokens_.Unexpected();
}

absl::StatusOr<ExprPtr> ExprParser::ParseNumber() {
  const Token& token = tokens_.Next();
  double real = 0;
  if (token.kind == TokenKind::kInteger) {
    const auto integer = ParseInteger(token.text, /*base=*/0);
    if (!integer) return tokens_.Error("an integer does not fit 64 bits");
    return Constant(*integer);
  }
  if (!absl::SimpleAtod(token.text, &real)) return tokens_.Error("a number is malformed");
  return Constant(real);
}

absl::StatusOr<ExprPtr> ExprParser::ParseList() {
  const int line = tokens_.Next().line;
  Exprs items;
  while (!tokens_.SeesOperator("]")) {
    MILLRACE_ASSIGN_OR_RETURN(ExprPtr item, ParseConditional());
    items.push_back(std::move(item));
    if (!tokens_.TakeOperator(",")) break;
  }
  MILLRACE_RETURN_IF_ERROR(tokens_.ExpectOperator("]"));
  return Make(ExprKind::kList, line, std::move(items));
}

absl::StatusOr<ExprPtr> ExprParser::ParseDict() {
  const int line = tokens_.Next().line;
  Exprs items;
  while (!tokens_.SeesOperator("}")) {
    MILLRACE_ASSIGN_OR_RETURN(ExprPtr key, ParseConditional());
    MILLRACE_RETURN_IF_ERROR(tokens_.ExpectOperator(":"));
    MILLRACE_ASSIGN_OR_RETURN(ExprPtr value, ParseConditional());
    items.push_back(std::move(key));
    items.push_back(std::move(value));
    if (!tokens_.TakeOperator(",")) break;
  }
  MILLRACE_RETURN_IF_ERROR(tokens_.ExpectOperator("}"));
  return Make(ExprKind::kDict, line, std::move(items));
}

absl::StatusOr<ExprPtr> ExprParser::ParsePostfix(ExprPtr expr) {
  for (;;) {
    if (tokens_.SeesOperator(".")) {
      const int line = tokens_.Next().line;
      if (tokens_.Peek().kind == TokenKind::kInteger) {
        MILLRACE_ASSIGN_OR_RETURN(ExprPtr index, ParseNumber());
        MILLRACE_ASSIGN_OR_RETURN(
            expr, Make(ExprKind::kItem, line, Operands(std::move(expr), std::move(index))));
        continue;
      }
      MILLRACE_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName("an attribute's name"));
      MILLRACE_ASSIGN_OR_RETURN(
          expr, Make(ExprKind::kAttribute, line, Operands(std::move(expr)), std::move(name)));
    } else if (tokens_.SeesOperator("[")) {
      MILLRACE_ASSIGN_OR_RETURN(expr, ParseSubscript(std::move(expr)));
    } else if (tokens_.SeesOperator("(")) {
      const int line = expr->line;
      Exprs operands = Operands(std::move(expr));
      std::vector<std::string> names;
      MILLRACE_RETURN_IF_ERROR(ParseArguments(operands, names));
      MILLRACE_ASSIGN_OR_RETURN(
          expr, MakeCall(ExprKind::kCall, line, std::move(operands), std::move(names)));
    } else {
      return expr;
    }
  }
}

absl::StatusOr<ExprPtr> ExprParser::ParseSubscript(ExprPtr object) {
  const int line = tokens_.Next().line;
  Exprs parts;  // The expressions before, between and after colons.
  bool is_slice = false;
  do {
    const bool empty = tokens_.SeesOperator(":") || tokens_.SeesOperator("]");
    MILLRACE_ASSIGN_OR_RETURN(ExprPtr part, empty ? Constant(None()) : ParseConditional());
    if (empty && !tokens_.SeesOperator(":") && !is_slice) return tokens_.Unexpected();
    parts.push_back(std::move(part));
    is_slice = is_slice || tokens_.SeesOperator(":");
  } while (parts.size() < 3 && tokens_.TakeOperator(":"));
  if (tokens_.SeesOperator(",")) return tokens_.Unsupported("an index of several parts");
  MILLRACE_RETURN_IF_ERROR(tokens_.ExpectOperator("]"));
  if (!is_slice) {
    return Make(ExprKind::kItem, line, Operands(std::move(object), std::move(parts.front())));
  }
  while (parts.size() < 3) {
    MILLRACE_ASSIGN_OR_RETURN(ExprPtr part, Constant(None()));
    parts.push_back(std::move(part));
  }
  parts.insert(parts.begin(), std::move(object));
  return Make(ExprKind::kSlice, line, std::move(parts));
}

absl::StatusOr<ExprPtr> ExprParser::ParseFilters(ExprPtr expr) {
  for (;;) {
    if (tokens_.TakeOperator("|")) {
      MILLRACE_ASSIGN_OR_RETURN(expr, ParseFilter(std::move(expr)));
    } else if (tokens_.TakeName("is")) {
      MILLRACE_ASSIGN_OR_RETURN(expr, ParseTest(std::move(expr)));
    } else if (tokens_.SeesOperator("(")) {
      return tokens_.Unsupported("calling the result of a filter or test");
    } else {
      return expr;
    }
  }
}

absl::StatusOr<ExprPtr> ExprParser::ParseFilter(ExprPtr expr) {
  const int line = tokens_.line();
  MILLRACE_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName("a filter's name"));
  Exprs operands = Operands(std::move(expr));
  std::vector<std::string> names;
  if (tokens_.SeesOperator("(")) MILLRACE_RETURN_IF_ERROR(ParseArguments(operands, names));
  return MakeApply(line, "filter", FindFilter, name, std::move(operands), std::move(names));
}

absl::StatusOr<ExprPtr> ExprParser::ParseBodyFilters() {
  MILLRACE_ASSIGN_OR_RETURN(ExprPtr expr, Make(ExprKind::kName, tokens_.line(), {}, kBodyVariable));
  if (tokens_.Peek().kind == TokenKind::kName) {
    MILLRACE_ASSIGN_OR_RETURN(expr, ParseFilter(std::move(expr)));
  }
  return ParseFilters(std::move(expr));
}

absl::StatusOr<ExprPtr> ExprParser::ParseTest(ExprPtr expr) {
  const int line = tokens_.line();
  const bool negated = tokens_.TakeName("not");
  MILLRACE_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName("a test's name"));
  const Token& next = tokens_.Peek();
  const bool begins_value = next.kind == TokenKind::kString || next.kind == TokenKind::kInteger ||
                            next.kind == TokenKind::kFloat || tokens_.SeesOperator("[") ||
                            tokens_.SeesOperator("{");
  const bool is_name = next.kind == TokenKind::kName && next.text != "else" && next.text != "or" &&
                       next.text != "and";
  Exprs operands = Operands(std::move(expr));
  std::vector<std::string> names;
  if (tokens_.SeesOperator("(")) {
    MILLRACE_RETURN_IF_ERROR(ParseArguments(operands, names));
  } else if (tokens_.SeesName("is")) {
    return tokens_.Unsupported("a chain of tests");
  } else if (begins_value || is_name) {
    MILLRACE_ASSIGN_OR_RETURN(ExprPtr argument, ParsePrimary());
    MILLRACE_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    operands.push_back(std::move(argument));
    names.emplace_back();
  }
  MILLRACE_ASSIGN_OR_RETURN(
      expr, MakeApply(line, "test", FindTest, name, std::move(operands), std::move(names)));
  if (!negated) return expr;
  return Make(ExprKind::kNot, line, Operands(std::move(expr)));
}

absl::Status ExprParser::ParseArguments(Exprs& operands, std::vector<std::string>& names) {
  MILLRACE_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
  bool any_named = false;
  while (!tokens_.SeesOperator(")")) {
    std::string name;
    if (tokens_.SeesOperator("*") || tokens_.SeesOperator("**")) {
      name = tokens_.Next().text;
    } else if (tokens_.Peek().kind == TokenKind::kName &&
               tokens_.Peek(1).Is(TokenKind::kOperator, "=")) {
      name = tokens_.Next().text;
      tokens_.Next();
    }
    if (any_named && name.empty()) return tokens_.Unexpected();
    any_named = any_named || (!name.empty() && name != "*");
    MILLRACE_ASSIGN_OR_RETURN(ExprPtr value, ParseConditional());
    operands.push_back(std::move(value));
    names.push_back(std::move(name));
    if (!tokens_.TakeOperator(",")) break;
  }
  return tokens_.ExpectOperator(")");
}

}  // namespace

absl::StatusOr<ExprPtr> ParseBodyFilters(TokenStream& tokens) {
  return ExprParser(tokens).ParseBodyFilters();
}

absl::StatusOr<ExprPtr> ParseTupleExpr(TokenStream& tokens, bool conditional) {
  return ExprParser(tokens).ParseTuple(conditional, /*in_parentheses=*/false);
}

absl::StatusOr<ExprPtr> ParseExpr(TokenStream& tokens) {
  return ExprParser(tokens).ParseConditional();
}

}  // namespace millrace::jinja
