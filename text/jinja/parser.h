// Parses templates; this folder's README names what is refused.
#ifndef MILLRACE_TEXT_JINJA_PARSER_H_
#define MILLRACE_TEXT_JINJA_PARSER_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "text/jinja/ast.h"
#include "text/jinja/budget.h"

namespace millrace::jinja {

// Errors begin with "line N: ". What Jinja has and we lack is named: "line 3: include is not
// supported".
absl::StatusOr<Block> Parse(std::string_view source, const TemplateLimits& limits);

}  // namespace millrace::jinja

#endif  // MILLRACE_TEXT_JINJA_PARSER_H_
