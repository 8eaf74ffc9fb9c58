// Sends a thread's requests as calls of millrace.v1.Inference/Generate.
#ifndef MILLRACE_LOADTEST_GRPC_CLIENT_H_
#define MILLRACE_LOADTEST_GRPC_CLIENT_H_

#include <grpcpp/completion_queue.h>

#include <memory>
#include <queue>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/driver.h"
#include "loadtest/grpc_channels.h"
#include "millrace/v1/inference.grpc.pb.h"

namespace millrace {

class GrpcCall;

// Returns the name of the first model that the server lists. Blocks, 10 s at most.
absl::StatusOr<std::string> FirstGrpcModel(const Options& options, GrpcChannels& channels);

// Asks the server for its version.
absl::StatusOr<std::string> GrpcServerVersion(const Options& options, GrpcChannels& channels);

class GrpcClient : public Client {
 public:
  // `connections`: of this thread.
  GrpcClient(GrpcChannels& channels, int64_t connections, Driver& driver);
  ~GrpcClient() override;

  void Send(std::unique_ptr<Exchange> exchange) override;
  void AbortAll() override;
  // Runs the thread's share until the driver has finished.
  void Run();

 private:
  struct Pause {
    double until;
    GrpcCall* call;
    bool operator>(const Pause& other) const { return until > other.until; }
  };

  void Take(GrpcCall* call, bool ok);
  void Finish(GrpcCall* call);
  void ResumePaused(double now);

  Driver& driver_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<v1::Inference::Stub>> stubs_;
  size_t next_stub_ = 0;
  std::unordered_set<GrpcCall*> active_;                                   // owned
  std::priority_queue<Pause, std::vector<Pause>, std::greater<>> paused_;  // slow readers
};

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_GRPC_CLIENT_H_
