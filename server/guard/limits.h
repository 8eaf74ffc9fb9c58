// The limits of a guarded HTTP/2 connection, and the reasons for which one ends.
#ifndef MILLRACE_SERVER_GUARD_LIMITS_H_
#define MILLRACE_SERVER_GUARD_LIMITS_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/clock.h"

namespace millrace {

// Events that a connection may cause: `burst` at once, and `per_second` on top.
struct RateLimit {
  double burst = 0;
  double per_second = 0;
};

struct GuardLimits {
  // Limits of one connection.
  size_t header_block_bytes = 64 << 10;    // coded, with the frame headers of CONTINUATIONs
  uint64_t header_list_bytes = 64 << 10;   // decoded, 32 more for each field (RFC 9113, 6.5.2)
  size_t streams = 256;                    // open at once
  RateLimit resets = {512, 128};           // RST_STREAM; a stream that ends well earns one back
  RateLimit pings = {100, 10};             // a frame of an answer earns one back
  RateLimit settings = {16, 1};            // and no acknowledgement of the server's earns any
  RateLimit window_updates = {2000, 200};  // a frame of an answer earns four back
  RateLimit idle_frames = {200, 20};       // PRIORITY, empty DATA, unknown types, of closed streams
  int unanswered_frames = 8;               // PING and SETTINGS: further ones wait
  Duration handshake_timeout = std::chrono::seconds(10);  // until the first SETTINGS has come
  Duration header_timeout = std::chrono::seconds(10);     // of one header block
  Duration write_timeout = std::chrono::seconds(30);  // without a byte taken, or a window opened
  Duration linger_timeout = std::chrono::seconds(2);  // for the client to read the last frames
  // From a message's first byte, or, for a call's first message, from its headers on. Then it must
  // have come at this rate:
  Duration message_grace = std::chrono::seconds(10);
  double message_bytes_per_second = 1024;

  // Limits of all connections together.
  size_t connections = 4096;
  size_t all_streams = 16384;
  uint64_t all_message_bytes = 64 << 20;  // of messages that are coming in
  RateLimit all_resets = {4000, 2000};    // further ones wait
};

// Why a connection was refused or closed, or (kMessage…) one of its streams reset.
enum class GuardReason {
  kClosed,       // by the client or by the server behind the guard
  kHttp1,        // a request of HTTP/1
  kProtocol,     // what RFC 9113 forbids
  kHeaderBytes,  // header_block_bytes or header_list_bytes
  kFrameSize,
  kStreams,
  kResets,
  kPings,
  kSettings,
  kWindowUpdates,
  kIdleFrames,
  kHandshakeTimeout,
  kHeaderTimeout,
  kWriteTimeout,
  kMessageRate,
  kMessageBytes,
  kConnections,  // the total ran short and this one was idle, or the newest
  kShutdown,
  kPlaintext,          // to a port that speaks TLS
  kTls,                // to a port that does not
  kTlsHandshake,       // failed
  kClientCertificate,  // missing, or not one of --ssl-ca-certs
  kProxyHeader,        // of --trusted-proxies: missing
};
inline constexpr size_t kGuardReasons = 23;

// Returns the reason as the metric's label has it: "header_bytes".
std::string_view GuardReasonName(GuardReason reason);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GUARD_LIMITS_H_
