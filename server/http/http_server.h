// The HTTP endpoint: a listener, the threads of its connections, and the limits that hold them.
#ifndef MILLRACE_SERVER_HTTP_HTTP_SERVER_H_
#define MILLRACE_SERVER_HTTP_HTTP_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "config/settings.h"
#include "server/frontend.h"
#include "server/guard/output_budget.h"
#include "server/http/transport/http_limits.h"
#include "server/tls/transport.h"

namespace millrace {

struct HttpOptions {
  std::string host = "127.0.0.1";  // an address, or "localhost"
  uint16_t port = 0;               // 0: any free one
  bool listens = true;  // false: connections come by Adopt alone, and host and port are unused
  // The settings that an error blames.
  std::string_view host_setting = "host";
  std::string_view port_setting = "http-port";
  std::string_view hosts_setting = "allowed-hosts";
  std::vector<std::string> allowed_hosts;
  UnknownFields unknown_fields = UnknownFields::kRefuse;
  bool auto_tool_choice = true;
  bool admin = false;         // the operator's listener: on loopback, a key only with --keys
  std::string console;        // its URL, for GET /; empty: not shown
  bool metrics_only = false;  // a listener with /metrics and the probes alone, without a key
  std::vector<std::string> allowed_origins;  // of pages whose scripts may read answers
  int threads = 1;
  HttpLimits limits;
  std::shared_ptr<OutputBudget> outputs;  // shared by endpoints; null: one of all_answer_bytes
  const Clock* clock = &Clock::Real();    // for how long answers have waited; outlives the server
  TransportRules transport;
  std::function<void()> drain = [] {};  // of the admin listener: begins to end the server
};

class HttpServer {
 public:
  // `frontend` outlives it.
  HttpServer(Frontend& frontend, HttpOptions options);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();  // Stop(0)

  // Listens, and returns the port (0 if it does not listen). InvalidArgument: host or
  // allowed_hosts; Unavailable: the port is taken.
  absl::StatusOr<uint16_t> Start();

  // Takes a connection that another one accepted, and of which no byte was read. Call after Start
  // and before Stop. Thread-safe.
  void Adopt(int fd);

  // InvalidArgument: one of the hosts is none.
  absl::Status CheckAllowedHosts(const std::vector<std::string>& hosts) const;
  // Sets the hosts that requests may name from now on. InvalidArgument: one is not a host.
  absl::Status SetAllowedHosts(const std::vector<std::string>& hosts);

  // Drops new handshakes; those that have begun end, and are accepted. Call kHandshakeTime before
  // StopListening, so that it resets no connection.
  void DropHandshakes();

  // Accepts no more and closes idle connections; what is under way goes on, and so does the wait
  // for the first request of a connection. Call before Stop.
  void StopListening();

  // Accepts no more, closes idle connections, and gives the others `grace` to end their answers;
  // then closes them (which cancels what they wait for) and ends the threads.
  void Stop(absl::Duration grace);

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_HTTP_SERVER_H_
