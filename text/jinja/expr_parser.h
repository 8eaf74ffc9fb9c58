// Parses expressions by recursive descent, with Jinja's precedences.
#ifndef MILLRACE_TEXT_JINJA_EXPR_PARSER_H_
#define MILLRACE_TEXT_JINJA_EXPR_PARSER_H_

#include "absl/status/statusor.h"
#include "text/jinja/ast.h"
#include "text/jinja/token_stream.h"

namespace millrace::jinja {

// Parses `a`, or a tuple `a, b`. Without `conditional` an `if` at the top ends it, as between `in`
// and `if` of a for statement.
absl::StatusOr<ExprPtr> ParseTupleExpr(TokenStream& tokens, bool conditional);
// Parses the filters of a block, `upper | trim`, or none, applied to the variable kBodyVariable.
absl::StatusOr<ExprPtr> ParseBodyFilters(TokenStream& tokens);
// Parses `a` or `a if b else c`.
absl::StatusOr<ExprPtr> ParseExpr(TokenStream& tokens);

}  // namespace millrace::jinja

#endif  // MILLRACE_TEXT_JINJA_EXPR_PARSER_H_
