// Whole files.
#ifndef MILLRACE_LOADTEST_FILES_H_
#define MILLRACE_LOADTEST_FILES_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace {

// An error names the file.
absl::StatusOr<std::string> ReadFile(const std::string& path);
absl::Status WriteFile(const std::string& path, std::string_view text);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_FILES_H_
