// Runs a load from its first request to its last.
#ifndef MILLRACE_LOADTEST_RUNNER_H_
#define MILLRACE_LOADTEST_RUNNER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/driver.h"
#include "loadtest/grpc_channels.h"
#include "loadtest/http_client.h"
#include "loadtest/options.h"
#include "loadtest/prompt_sources.h"
#include "loadtest/session_trace.h"
#include "loadtest/setup.h"
#include "loadtest/tls.h"
#include "loadtest/url.h"
#include "loadtest/workload.h"

namespace millrace {

struct RunResult {
  Measurements measurements;
  double duration = 0;     // seconds, from the start to the last request's end
  double cpu_seconds = 0;  // that this program's threads took
  int threads = 0;
  int64_t events = 0;
  Histogram lag;                 // how late this program itself sent requests of an open loop
  Facts server;                  // what the server says of itself; empty if no file is written
  PromptSources prompt_sources;  // of replays, by the server's metrics; empty if it has none
};

// A server, and the requests for it. Prepare once, then run as often as you like.
class LoadRunner {
 public:
  // Resolves the server's name, asks for a model's name if there is none, and finds out how many
  // tokens a word is. `stop`: ends a run early.
  static absl::StatusOr<std::unique_ptr<LoadRunner>> Prepare(Options options,
                                                             const std::atomic<bool>& stop);

  // Runs with other options of load than those of Prepare.
  absl::StatusOr<RunResult> Run(const Options& options) const;
  const Options& options() const { return options_; }
  bool stopped() const { return stop_; }

 private:
  LoadRunner(Options options, const std::atomic<bool>& stop)
      : options_(std::move(options)), stop_(stop) {}

  // Reads the file of a replay, whose sessions are sent once at most.
  absl::Status ReadSessions();
  absl::Status FindModel();
  // Servers without a version or a list of models say less.
  void FindServerFacts();
  absl::Status Calibrate();
  absl::StatusOr<double> PromptTokens(int64_t words) const;
  PromptSources CountPromptSources() const;
  absl::StatusOr<RunResult> RunWith(const Options& options, const Workload& workload,
                                    bool show) const;

  Options options_;
  const std::atomic<bool>& stop_;
  ServerUrl url_;
  HttpEndpoints endpoints_;
  std::unique_ptr<HttpTls> http_tls_;   // null for http:// and gRPC
  std::unique_ptr<GrpcChannels> grpc_;  // null for HTTP
  std::shared_ptr<const std::vector<TraceEntry>> trace_;
  std::shared_ptr<const SessionTrace> sessions_;  // null: none, or synthetic ones
  PromptScale scale_;
  Facts server_facts_;
};

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_RUNNER_H_
