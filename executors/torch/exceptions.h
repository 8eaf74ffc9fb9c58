// What LibTorch throws becomes a status here: exceptions stop at its edge.
#ifndef MILLRACE_EXECUTORS_TORCH_EXCEPTIONS_H_
#define MILLRACE_EXECUTORS_TORCH_EXCEPTIONS_H_

#include <exception>
#include <string_view>

#include "absl/status/status.h"
#include "base/strings.h"

namespace millrace::aten {

// what() has LibTorch's call stack in it: the first line says what happened.
inline absl::Status FromException(absl::StatusCode code, const std::exception& error) {
  const std::string_view what = error.what();
  return absl::Status(code, StrCat("LibTorch: ", Printable(what.substr(0, what.find('\n')), 400)));
}

}  // namespace millrace::aten

#endif  // MILLRACE_EXECUTORS_TORCH_EXCEPTIONS_H_
