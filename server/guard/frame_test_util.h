// Frames of HTTP/2 for tests.
#ifndef MILLRACE_SERVER_GUARD_FRAME_TEST_UTIL_H_
#define MILLRACE_SERVER_GUARD_FRAME_TEST_UTIL_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "server/guard/http2.h"

namespace millrace {

inline std::string MakeFrame(uint8_t type, uint8_t flags, uint32_t stream,
                             std::string_view payload = "") {
  std::string out;
  http2::AppendFrameHeader(out, {.length = static_cast<uint32_t>(payload.size()),
                                 .type = type,
                                 .flags = flags,
                                 .stream = stream});
  out += payload;
  return out;
}

}  // namespace millrace

#endif  // MILLRACE_SERVER_GUARD_FRAME_TEST_UTIL_H_
