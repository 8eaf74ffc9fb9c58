// Names for requests, on log lines and in answers.
#ifndef MILLRACE_SERVER_HTTP_REQUEST_ID_H_
#define MILLRACE_SERVER_HTTP_REQUEST_ID_H_

#include <string>
#include <string_view>

namespace millrace {

// 32 hexadecimal digits, random. Not a secret.
std::string NewRequestId();

// Whether a client's X-Request-Id may be repeated in a header and on a log line: 1 to 128 printable
// ASCII characters, no space.
bool IsFitRequestId(std::string_view id);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_REQUEST_ID_H_
