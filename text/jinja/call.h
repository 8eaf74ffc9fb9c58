// The arguments of a call, put to parameters.
#ifndef MILLRACE_TEXT_JINJA_CALL_H_
#define MILLRACE_TEXT_JINJA_CALL_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "text/jinja/builtin.h"
#include "text/jinja/value.h"

namespace millrace::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Returns the argument of each parameter, absent where none is given; what is for none of them is
// left in `arguments`. An error if one is given twice; `what` is called, for messages.
absl::StatusOr<std::vector<std::optional<Value>>> BindArguments(
    std::string_view what, const std::vector<std::string_view>& parameters, Arguments& arguments);

// Returns an error if any argument is left.
absl::Status CheckNoneLeft(std::string_view what, size_t parameters, const Arguments& arguments);

// Fills in the parameters and runs it.
absl::StatusOr<Value> CallBuiltin(CallContext& context, const Builtin& builtin, const Value& self,
                                  Arguments arguments);

}  // namespace millrace::jinja

#endif  // MILLRACE_TEXT_JINJA_CALL_H_
