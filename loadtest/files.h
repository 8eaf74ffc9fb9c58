// Whole files.
#ifndef MILLRACE_LOADTEST_FILES_H_
#define MILLRACE_LOADTEST_FILES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace {

// An error names the file.
absl::StatusOr<std::string> ReadFile(const std::string& path);
absl::Status WriteFile(const std::string& path, std::string_view text);
// Writes part(0) to part(count - 1), of which one at a time is in memory.
absl::Status WriteFileInParts(const std::string& path, uint64_t count,
                              const std::function<std::string(uint64_t)>& part);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_FILES_H_
