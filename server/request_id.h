// Names for requests, on log lines and in answers, whichever door they came through.
#ifndef MILLRACE_SERVER_REQUEST_ID_H_
#define MILLRACE_SERVER_REQUEST_ID_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace {

// 32 hexadecimal digits, random. Not a secret.
std::string NewRequestId();

inline constexpr size_t kMaxRequestIdBytes = 128;

// Whether a client's own id may be repeated in a header and on a log line: 1 to kMaxRequestIdBytes
// printable ASCII characters, no space.
bool IsFitRequestId(std::string_view id);

}  // namespace millrace

#endif  // MILLRACE_SERVER_REQUEST_ID_H_
