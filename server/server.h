// The whole server: a model, its endpoints, and how they begin and end.
#ifndef MILLRACE_SERVER_SERVER_H_
#define MILLRACE_SERVER_SERVER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "config/settings.h"
#include "engine/served_model.h"
#include "nodes/node_group.h"
#include "server/frontend_impl.h"
#include "server/grpc/grpc_server.h"
#include "server/guard/output_budget.h"
#include "server/guard/shared_port.h"
#include "server/http/http_server.h"
#include "server/kv_events/kv_event_publisher.h"
#include "server/node.h"
#include "server/tls/tls_server.h"
#include "server/tracing/otlp_exporter.h"

namespace millrace {

// The ports that the endpoints listen on.
struct Ports {
  int http = 0;
  int grpc = 0;
  int admin = 0;
  int metrics = 0;  // 0: there is no such listener
};

class Server {
 public:
  // Loads the model, opens the endpoints, and writes settings.ready_file when both are done. After
  // an error what was begun goes on: end the process.
  // `events.on_failure` is called once, from some thread, when the device has failed: then end the
  // process. `stop`, once true, ends the fetching of a model with Cancelled, and what has loaded
  // meanwhile is not served.
  // `events.on_leave` is called when another node of --nnodes wants to end in order: set `stop`,
  // and drain; `events.on_end` when `stop` has ended all nodes while one of them loads.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Settings& settings, NodeEvents events,
                                                       const std::atomic<bool>& stop);
  ~Server();

  // Says that it is not ready, and goes on to take work for --drain-delay, after which it listens
  // no more. Then refuses new work, waits for accepted work for at most --drain-timeout, cancels
  // the remainder, and closes the endpoints. Called once.
  void Drain();

  // Sets the hosts that requests may name from now on, of each listener its own, as these settings
  // have them. InvalidArgument: one is not a host.
  absl::Status SetAllowedHosts(const Settings& settings);

  // Shows in metrics and /readyz whether what `reading` is of could be read. It outlives the
  // server.
  void Follow(FileReading& reading) { frontend_.Follow(reading); }

  // Reads the certificate's files again; without TLS it does nothing.
  void ReloadCertificates();

  // Closes the endpoints after a failure, once what the engine has answered is out, and sends the
  // last traces.
  void CloseAfterFailure();

  const Ports& ports() const { return ports_; }

 private:
  explicit Server(const Settings& settings);

  absl::Status OpenEndpoints();
  absl::Status OpenSharedPort();
  absl::Status OpenKvEvents();
  // Waits until the other nodes have come, where there are several.
  absl::Status MeetNodes(NodeEvents events, const std::atomic<bool>& stop);
  absl::Status LoadModel(std::function<void()> on_failure, const std::atomic<bool>& stop);
  absl::Status LoadInferEngine(const std::string& path);

  void WaitBeforeDrain();
  void CloseEndpoints(Duration grace);

  const Settings settings_;
  FrontendImpl frontend_;
  std::unique_ptr<NodeGroup> nodes_;             // null: this is the only one
  std::unique_ptr<OtlpExporter> traces_;         // null without --otlp-traces-endpoint
  std::unique_ptr<KvEventPublisher> kv_events_;  // null without --kv-events-config
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<TlsServer> tls_;         // null: HTTP and gRPC are plain
  std::shared_ptr<OutputBudget> outputs_;  // of all endpoints
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<HttpServer> admin_;
  std::unique_ptr<HttpServer> metrics_;  // null without --metrics-host
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<SharedPort> shared_;  // null: http_ and grpc_ have ports of their own
  Ports ports_;
  std::atomic<bool> drain_asked_ = false;  // by the console
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_SERVER_H_
