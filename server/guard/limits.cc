#include "server/guard/limits.h"

namespace millrace {

std::string_view GuardReasonName(GuardReason reason) {
  static constexpr std::array<std::string_view, kGuardReasons> kNames = {
      "closed",         "http1",
      "protocol",       "header_bytes",
      "frame_size",     "streams",
      "resets",         "pings",
      "settings",       "window_updates",
      "idle_frames",    "handshake_timeout",
      "header_timeout", "write_timeout",
      "message_rate",   "message_bytes",
      "connections",    "shutdown",
      "plaintext",      "tls",
      "tls_handshake",  "client_certificate",
      "proxy_header"};
  return kNames[static_cast<size_t>(reason)];
}

}  // namespace millrace
