// Control flow for absl::Status: return early on an error.
#ifndef MILLRACE_BASE_STATUS_H_
#define MILLRACE_BASE_STATUS_H_

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the enclosing function when `expr` is a status that is not OK.
#define MILLRACE_RETURN_IF_ERROR(expr)                                               \
  do {                                                                               \
    if (absl::Status status_macro = (expr); !status_macro.ok()) return status_macro; \
  } while (false)

// `MILLRACE_ASSIGN_OR_RETURN(auto value, F())` assigns the value of the StatusOr that F returns, or
// returns its error from the enclosing function.
#define MILLRACE_ASSIGN_OR_RETURN(lhs, expr) \
  MILLRACE_ASSIGN_OR_RETURN_IMPL(MILLRACE_STATUS_CONCAT(status_or_, __LINE__), lhs, expr)
#define MILLRACE_STATUS_CONCAT_IMPL(a, b) a##b
#define MILLRACE_STATUS_CONCAT(a, b) MILLRACE_STATUS_CONCAT_IMPL(a, b)
#define MILLRACE_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                                   \
  if (!result.ok()) return std::move(result).status();    \
  lhs = *std::move(result)

namespace millrace {

// Returns the error with "prefix: " before its message, to add the file or field that it concerns.
inline absl::Status Annotate(const absl::Status& status, std::string_view prefix) {
  if (status.ok()) return status;
  return absl::Status(status.code(), std::string(prefix) + ": " + std::string(status.message()));
}

}  // namespace millrace

#endif  // MILLRACE_BASE_STATUS_H_
