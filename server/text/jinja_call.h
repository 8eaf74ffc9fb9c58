// The arguments of a call, checked and put in order when the template is parsed.
#ifndef MILLRACE_SERVER_TEXT_JINJA_CALL_H_
#define MILLRACE_SERVER_TEXT_JINJA_CALL_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/jinja_ast.h"

namespace millrace::jinja {

// As they are written.
struct CallArguments {
  Exprs positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
};

// The operands of a kCall: `self`, then an argument for each parameter of `builtin`. Errors: no
// such builtin (null), an argument that is missing or one too many. `kind` and `name` are for
// these.
absl::StatusOr<Exprs> BindArguments(int line, std::string_view kind, const Builtin* builtin,
                                    std::string_view name, ExprPtr self, CallArguments arguments);

// The operands of a kNamespace.
absl::StatusOr<Exprs> NamespaceItems(int line, CallArguments arguments);

}  // namespace millrace::jinja

#endif  // MILLRACE_SERVER_TEXT_JINJA_CALL_H_
