// The gRPC endpoint: millrace.v1.Inference, grpc.health.v1 and reflection on one port.
#ifndef MILLRACE_SERVER_GRPC_GRPC_SERVER_H_
#define MILLRACE_SERVER_GRPC_GRPC_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/frontend.h"
#include "server/guard/entrance.h"
#include "server/guard/output_budget.h"

namespace millrace {

struct GrpcOptions {
  std::string host = "127.0.0.1";
  int port = 8001;      // 0: any free one
  bool listens = true;  // false: connections come by Adopt alone, and host and port are unused
  std::string version;
  int64_t max_message_bytes = 32 << 20;  // of one request
  int threads = 1;  // of the clients' sockets, and as many of the streams that answer them
  GuardLimits limits;
  std::shared_ptr<OutputBudget> outputs;  // shared by endpoints
  TransportRules transport;
};

class GrpcServer {
 public:
  virtual ~GrpcServer() = default;

  // Begins to serve; `options` have a budget. Health is NOT_SERVING until the frontend is ready.
  // `frontend` must outlive the server. Unavailable: the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(Frontend& frontend,
                                                           const GrpcOptions& options);

  virtual int port() const = 0;  // 0 if it does not listen

  // Takes a connection that another one accepted, and of which no byte was read. Call before
  // Shutdown. Thread-safe.
  virtual void Adopt(int fd) = 0;

  // Shows what the frontend says now in grpc.health.v1. Called when it became ready or began to
  // drain; a stall, which has no event, shows by itself.
  virtual void UpdateHealth() = 0;

  // The steps of an end that fails no call, in this order, all before Shutdown. First new
  // handshakes are dropped.
  virtual void DropHandshakes() = 0;
  // kHandshakeTime later: closes the ports, and says GOAWAY on every connection. Calls that come on
  // them are still served.
  virtual void StopListening() = 0;
  // When clients have read that: takes no more calls, while those under way go on, for at most
  // `grace`. Returns at once.
  virtual void EndConnections(absl::Duration grace) = 0;

  // Takes no more calls; returns when those under way have ended, or are cancelled after `grace`.
  virtual void Shutdown(absl::Duration grace) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_GRPC_SERVER_H_
