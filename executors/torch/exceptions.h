// Turns exceptions of LibTorch into statuses: they stop at its edge.
#ifndef MILLRACE_EXECUTORS_TORCH_EXCEPTIONS_H_
#define MILLRACE_EXECUTORS_TORCH_EXCEPTIONS_H_

#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "absl/status/status.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace::aten {

// Makes a status of the first line of what(), which says what happened; LibTorch's call stack
// follows it.
inline absl::Status FromException(absl::StatusCode code, const std::exception& error) {
  const std::string_view what = error.what();
  return absl::Status(code, StrCat("LibTorch: ", Printable(what.substr(0, what.find('\n')), 400)));
}

// Returns the result of `open` for the file at `path`. Errors begin with the file's name; an
// exception of LibTorch means that the file is damaged.
template <typename Open>
auto OpenNamed(const std::string& path, const Open& open) -> decltype(open()) {
  const std::filesystem::path file(path);
  const std::string name = Printable(file.filename().string());
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) {
    return absl::NotFoundError(StrCat("model: ", name, " is no file here"));
  }
  try {
    auto opened = open();
    if (opened.ok()) return opened;
    return Annotate(opened.status(), name);
  } catch (const std::exception& thrown) {
    return Annotate(FromException(absl::StatusCode::kInvalidArgument, thrown), name);
  }
}

}  // namespace millrace::aten

#endif  // MILLRACE_EXECUTORS_TORCH_EXCEPTIONS_H_
