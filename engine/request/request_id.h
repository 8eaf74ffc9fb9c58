// Makes the ids of requests, which log lines and responses show.
#ifndef MILLRACE_ENGINE_REQUEST_REQUEST_ID_H_
#define MILLRACE_ENGINE_REQUEST_REQUEST_ID_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace {

// Returns 32 random hexadecimal digits. They are no secret.
std::string NewRequestId();

inline constexpr size_t kMaxRequestIdBytes = 128;

// Returns whether a client's id may be repeated in headers and log lines: 1 to kMaxRequestIdBytes
// printable ASCII characters, no space.
bool IsFitRequestId(std::string_view id);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_REQUEST_REQUEST_ID_H_
