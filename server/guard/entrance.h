// The listener of a guarded HTTP/2 endpoint: owns its clients' sockets, and hands the server behind
// it one end of a socket pair for each connection, over which only checked frames come.
#ifndef MILLRACE_SERVER_GUARD_ENTRANCE_H_
#define MILLRACE_SERVER_GUARD_ENTRANCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "server/guard/guard_metrics.h"
#include "server/guard/limits.h"
#include "server/tls/transport.h"

namespace millrace {

struct EntranceOptions {
  std::string host = "127.0.0.1";  // an address, or "localhost"
  int port = 0;                    // 0: any free one
  // The settings that an error blames, and who logs.
  std::string_view host_setting = "host";
  std::string_view port_setting = "grpc-port";
  LogComponent component = LogComponent::kGrpc;
  bool listens = true;  // false: connections come by Adopt alone, and host and port are unused
  int threads = 1;
  TransportRules transport;
  GuardLimits limits;
};

class Entrance {
 public:
  // Gives the server behind the guard a connection: its end of a socket pair, non-blocking, which
  // it owns from then on.
  using Attach = std::function<void(int fd)>;

  // `metrics` outlives it.
  Entrance(EntranceOptions options, GuardMetrics& metrics, Attach attach);
  Entrance(const Entrance&) = delete;
  Entrance& operator=(const Entrance&) = delete;
  ~Entrance();  // Close(0)

  // Listens, and returns the port (0 if it does not listen). InvalidArgument: host; Unavailable:
  // the port is taken. On the wildcard address of either family it listens on all addresses of
  // both.
  absl::StatusOr<int> Start();

  // Takes a connection that another one accepted, and of which no byte was read. Call after Start
  // and before Close. Thread-safe.
  void Adopt(int fd);

  // Drops new handshakes; those that have begun end, and are accepted. Call kHandshakeTime before
  // StopListening, so that it resets no connection.
  void DropHandshakes();

  // Accepts no more, and has clients open no more streams. Connections and calls that are on their
  // way are still taken.
  void StopListening();

  // Accepts no more, and no longer calls `attach` once it has returned.
  void StopAccepting();

  // Waits for the connections to end, which the server behind has closed, for at most `grace`; then
  // closes those that are left, and ends the threads.
  void Close(absl::Duration grace);

  // Returns the address of the client of the connection whose `fd` was attached, as
  // "ipv4:1.2.3.4:56" or "ipv6:[::1]:56", followed by " (CN=...)" if it showed a certificate; empty
  // if it is gone. The server behind sees only the socket pair.
  std::string PeerOf(int fd) const;

  // Returns the names that this client's certificate stands for (IdentitiesOf in server/tls); null
  // if it showed none, or is gone.
  std::shared_ptr<const std::vector<std::string>> IdentitiesOf(int fd) const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GUARD_ENTRANCE_H_
