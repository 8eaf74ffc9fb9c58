// Renders a parsed template by walking its tree.
#ifndef MILLRACE_SERVER_TEXT_JINJA_INTERPRETER_H_
#define MILLRACE_SERVER_TEXT_JINJA_INTERPRETER_H_

#include <functional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/strings.h"
#include "server/text/jinja_ast.h"

namespace millrace::jinja {

using Variables = absl::flat_hash_map<std::string, Value, StringHash, std::equal_to<>>;

// The output. Errors begin with "line N: ".
absl::StatusOr<std::string> Render(const Block& block, Variables variables, CallContext context);

}  // namespace millrace::jinja

#endif  // MILLRACE_SERVER_TEXT_JINJA_INTERPRETER_H_
