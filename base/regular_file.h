// Reads the files that settings name, which may change and be replaced while the server runs.
#ifndef MILLRACE_BASE_REGULAR_FILE_H_
#define MILLRACE_BASE_REGULAR_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace millrace {

// Returns the content of a regular file, or of what a link leads to, and never waits for another
// process: a FIFO, a socket or a device is refused without being opened. An error's message is the
// reason alone ("it is a FIFO; allowed: ..."), before which the caller names the setting and the
// path. NotFound: there is no such file. PermissionDenied: it may not be read. InvalidArgument: it
// is no regular file. OutOfRange: it has more than `most_bytes`. Unavailable: another error of the
// system.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t most_bytes);

}  // namespace millrace

#endif  // MILLRACE_BASE_REGULAR_FILE_H_
