#include "server/grpc/grpc_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "base/strings.h"
#include "base/tenant_budget.h"
#include "engine/metrics/grpc_metrics.h"
#include "engine/metrics/metrics.h"
#include "server/grpc/access.h"
#include "server/grpc/call_service.h"
#include "server/grpc/callbacks.h"
#include "server/grpc/generate_call.h"
#include "server/grpc/generate_queue.h"
#include "server/grpc/health_service.h"
#include "server/grpc/inference_service.h"
#include "server/grpc/kserve_service.h"
#include "server/grpc/library_logs.h"
#include "server/grpc/reflection_service.h"
#include "server/grpc/unread_calls.h"
#include "server/grpc/vllm_service.h"

namespace millrace {
namespace {

// How long a stall may take to show in grpc.health.v1, Watch included.
constexpr auto kHealthPeriod = std::chrono::milliseconds(100);

// The memory that the messages of all calls may take, once they have come.
constexpr size_t kAllMessages = size_t{128} << 20;

// A message of so many bytes is taken beside a large one that has its tenant's part.
constexpr size_t kSmallMessage = size_t{64} << 10;

// For the last frames to get to clients that do read, after gRPC has ended its connections.
constexpr absl::Duration kLastFrames = absl::Seconds(1);

// Debian's gRPC 1.51 predates the fixes for HTTP/2 rapid reset (CVE-2023-44487) and for floods of
// metadata and pings. The guard before it bounds these (server/guard); the limits here are those
// whose excess ends one call, or that clients are told of. That of metadata is the guard's own, so
// that gRPC meets none beyond it: it would refuse the call and, where the rest of the header block
// comes by another read, leave out of its header table what the client believes in it.
void SetLimits(grpc::ServerBuilder& builder, const GrpcOptions& options) {
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             static_cast<int>(options.limits.streams));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE,
                             static_cast<int>(options.limits.header_list_bytes));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 10 * 60'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, 60 * 60'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, 30 * 60'000);
  // A compressed message becomes a thousand times as much before its size is checked, and before
  // the key is. Calls with one are UNIMPLEMENTED.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.SetResourceQuota(grpc::ResourceQuota("millrace").Resize(256 << 20).SetMaxThreads(64));
}

std::vector<std::string> ServiceNames() {
  return {"millrace.v1.Inference",
          "inference.GRPCInferenceService",
          "vllm.grpc.engine.VllmEngine",
          "grpc.health.v1.Health",
          "grpc.reflection.v1.ServerReflection",
          "grpc.reflection.v1alpha.ServerReflection"};
}

class GrpcServerImpl final : public GrpcServer {
 public:
  GrpcServerImpl(Frontend& frontend, const GrpcOptions& options)
      : frontend_(frontend),
        metrics_(frontend.metrics().registry()),
        calls_(frontend.metrics().registry()),
        log_([this](int fd) { return entrance_->PeerOf(fd); },
             [this](const grpc::ServerContextBase& context) { return access_.TenantOf(context); },
             [this](const char* method, grpc::StatusCode code) {
               calls_.OnCall(IsMethod(method) ? method : "/unknown/unknown",
                             static_cast<int>(code));
             }),
        access_(frontend, [this](int connection) { return entrance_->IdentitiesOf(connection); }),
        methods_([this](const grpc::ServerContextBase& context,
                        Scope scope) { return access_.Admit(context, scope); },
                 messages_),
        outputs_(options.outputs),
        unread_(*outputs_, access_),
        inference_(frontend, access_, options.version),
        kserve_(frontend, access_, options.version),
        vllm_(frontend, access_, options.version),
        health_({"millrace.v1.Inference", "inference.GRPCInferenceService",
                 "vllm.grpc.engine.VllmEngine"}),
        reflection_(ServiceNames()) {
    inference_.Register(methods_);
    kserve_.Register(methods_);
    vllm_.Register(methods_);
    health_.Register(methods_);
    reflection_.Register(methods_);
  }

  ~GrpcServerImpl() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Serve(const GrpcOptions& options) {
    LogWhatLibrariesSay();
    // Debian builds Abseil without NDEBUG. Each lock that gRPC takes would look for a deadlock.
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
    grpc::EnableDefaultHealthCheckService(false);
    grpc::ServerBuilder builder;
    SetLimits(builder, options);
    builder.RegisterService(&generate_);
    builder.RegisterCallbackGenericService(&methods_);
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
        interceptors;
    interceptors.push_back(ChargeMessages(unread_));  // may change the status that calls end with
    interceptors.push_back(WatchCalls(log_));
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
    for (int i = 0; i < std::max(options.threads, 1); ++i) {
      queues_.push_back(std::make_unique<GenerateQueue>(
          generate_, log_, builder.AddCompletionQueue(), messages_, *outputs_,
          [this] { return new GenerateCall(inference_); }));
    }
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::InternalError("gRPC's server does not start");
    for (const auto& queue : queues_) queue->Start();
    entrance_ = std::make_unique<Entrance>(
        EntranceOptions{.host = options.host,
                        .port = options.port,
                        .listens = options.listens,
                        .threads = options.threads,
                        .transport = options.transport,
                        .limits = options.limits},
        metrics_, [this](int fd) { grpc::AddInsecureChannelFromFd(server_.get(), fd); });
    MILLRACE_ASSIGN_OR_RETURN(port_, entrance_->Start());
    health_thread_ = std::thread([this] { FollowHealth(); });
    return absl::OkStatus();
  }

  int port() const override { return port_; }

  void Adopt(int fd) override { entrance_->Adopt(fd); }

  void UpdateHealth() override {
    const std::lock_guard lock(mutex_);
    UpdateHealthLocked();
  }

  void DropHandshakes() override { entrance_->DropHandshakes(); }

  void StopListening() override { entrance_->StopListening(); }

  void EndConnections(absl::Duration grace) override {
    entrance_->StopAccepting();
    health_.Close();
    ending_ =
        std::thread([this, grace] { server_->Shutdown(absl::ToChronoTime(absl::Now() + grace)); });
  }

  void Shutdown(absl::Duration grace) override {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(stopping_, true)) return;
    }
    stop_.notify_all();
    if (health_thread_.joinable()) health_thread_.join();
    if (entrance_ != nullptr) entrance_->StopAccepting();
    health_.Close();
    if (ending_.joinable()) ending_.join();
    if (server_ != nullptr) {
      server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
      server_->Wait();
      for (const auto& queue : queues_) queue->Stop();
    }
    if (entrance_ != nullptr) entrance_->Close(kLastFrames);
  }

 private:
  void UpdateHealthLocked() {
    const bool serving = !stopping_ && frontend_.ready() && frontend_.live();
    if (std::exchange(serving_, serving) != serving) health_.Set(serving);
  }

  void FollowHealth() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      UpdateHealthLocked();
      lock.unlock();
      unread_.CancelEvicted();
      lock.lock();
      stop_.wait_for(lock, kHealthPeriod, [this] { return stopping_; });
    }
    UpdateHealthLocked();
  }

  Frontend& frontend_;
  GuardMetrics metrics_;
  GrpcMetrics calls_;
  CallLog log_;
  CallAccess access_;
  TenantBudget messages_{"the messages", kAllMessages, kSmallMessage};
  CallService methods_;
  const std::shared_ptr<OutputBudget> outputs_;
  UnreadCalls unread_;
  InferenceService inference_;
  KserveService kserve_;
  VllmService vllm_;
  HealthService health_;
  ReflectionService reflection_;
  GenerateMethod generate_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::unique_ptr<GenerateQueue>> queues_;
  std::unique_ptr<Entrance> entrance_;  // owns the clients' sockets

  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;  // guarded by mutex_
  bool serving_ = false;   // guarded by mutex_; what grpc.health.v1 says
  std::thread health_thread_;
  std::thread ending_;  // waits for the calls under way, after EndConnections
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(Frontend& frontend,
                                                              const GrpcOptions& options) {
  auto server = std::make_unique<GrpcServerImpl>(frontend, options);
  if (absl::Status status = server->Serve(options); !status.ok()) return status;
  return std::unique_ptr<GrpcServer>(std::move(server));
}

}  // namespace millrace
