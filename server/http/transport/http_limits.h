// The bounds of what the connections of an HTTP server may hold, and of their times.
#ifndef MILLRACE_SERVER_HTTP_TRANSPORT_HTTP_LIMITS_H_
#define MILLRACE_SERVER_HTTP_TRANSPORT_HTTP_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace millrace {

struct HttpLimits {
  size_t header_bytes = 16 << 10;          // of one request, with its first line
  size_t header_fields = 100;              // of one request
  uint64_t body_bytes = 32 << 20;          // of one request
  uint64_t all_bodies_bytes = 256 << 20;   // that have come, of all requests being read
  uint64_t large_body_bytes = 512 << 10;   // a body above this is large,
  uint64_t large_bodies_bytes = 64 << 20;  // and waits until all large ones leave it place:
  absl::Duration place_timeout = absl::Seconds(30);  // for so long
  uint64_t all_answer_bytes = 64 << 20;  // that wait for clients; see HttpOptions::outputs
  size_t connections = 4096;
  size_t probe_connections = 128;  // beyond these: for requests that need no key
  absl::Duration header_timeout =
      absl::Seconds(10);  // from a request's first byte to its header's end
  absl::Duration body_timeout = absl::Seconds(60);  // from there to the body's end
  absl::Duration body_grace = absl::Seconds(10);    // then the body must have come at this rate:
  double body_bytes_per_second = 1024;
  absl::Duration idle_timeout = absl::Seconds(75);   // between requests
  absl::Duration write_timeout = absl::Seconds(30);  // without one byte taken by the client
  absl::Duration ping_interval = absl::Seconds(10);  // of a stream that waits; 0: none
  absl::Duration linger_timeout = absl::Seconds(2);  // for the client to read the last answer
  size_t read_away_bytes = 16 << 20;                 // of what it sends meanwhile
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_TRANSPORT_HTTP_LIMITS_H_
