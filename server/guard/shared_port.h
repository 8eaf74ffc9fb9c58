// One port for HTTP and gRPC: accepts connections, and hands each to its endpoint when its first
// bytes say which that is.
#ifndef MILLRACE_SERVER_GUARD_SHARED_PORT_H_
#define MILLRACE_SERVER_GUARD_SHARED_PORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/tls/transport.h"

namespace prometheus {
class Registry;
}  // namespace prometheus

namespace millrace {

struct SharedPortOptions {
  std::string host = "127.0.0.1";  // an address, or "localhost"
  uint16_t port = 0;               // 0: any free one
  TransportRules transport;
  // Connections that have not said their protocol: beyond these the oldest one gives way, and none
  // may take longer.
  size_t connections = 4096;
  Duration timeout = std::chrono::seconds(10);
};

// Looks at what lies in a socket without reading it, so that an endpoint gets a connection as if it
// had accepted it itself, and holds a socket and no buffer of one that is silent.
class SharedPort {
 public:
  // Takes a connection, a socket that it owns from then on. Called on the port's thread.
  using Take = std::function<void(int fd)>;
  struct Endpoints {
    Take http1;
    Take http2;
  };

  // `registry` outlives it.
  SharedPort(SharedPortOptions options, prometheus::Registry& registry, Endpoints endpoints);
  SharedPort(const SharedPort&) = delete;
  SharedPort& operator=(const SharedPort&) = delete;
  ~SharedPort();  // Close

  // Listens, and returns the port. InvalidArgument: host; Unavailable: the port is taken.
  absl::StatusOr<uint16_t> Start();

  // Drops new handshakes; those that have begun end, and are accepted. Call kHandshakeTime before
  // StopListening, so that it resets no connection.
  void DropHandshakes();

  // Accepts no more. Connections that have not said their protocol may still do so.
  void StopListening();

  // Closes those too, and hands on no more. Call before the endpoints end.
  void Close();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GUARD_SHARED_PORT_H_
