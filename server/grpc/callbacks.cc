#include "server/grpc/callbacks.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "base/log.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kGrpc);

class RefusedGenerate final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  explicit RefusedGenerate(const grpc::Status& status) {
    fence_.Pass();
    Finish(status);
  }

 private:
  void OnDone() override {
    fence_.Pass();
    delete this;
  }

  Fence fence_;
};

class LoggedCall final : public grpc::experimental::Interceptor {
 public:
  LoggedCall(const char* method, std::string peer) : method_(method), peer_(std::move(peer)) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* call) override {
    if (call->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_STATUS)) {
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - began_;
      const auto code = static_cast<absl::StatusCode>(call->GetSendStatus().error_code());
      kLog.Debug(method_, " ", absl::StatusCodeToString(code), " ", took.count(), " ms, ", peer_);
    }
    call->Proceed();
  }

 private:
  const char* const method_;
  const std::string peer_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

class LoggedCalls final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit LoggedCalls(std::function<std::string(int fd)> peer_of) : peer_of_(std::move(peer_of)) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* call) override {
    if (!kLog.Enabled(LogLevel::kDebug)) return nullptr;
    // gRPC knows the end of a socket pair: "fd:12".
    const std::string peer = call->server_context()->peer();
    const auto fd =
        ParseNumber<int>(std::string_view(peer).substr(std::min<size_t>(3, peer.size())));
    return new LoggedCall(call->method(), fd ? peer_of_(*fd) : peer);
  }

 private:
  const std::function<std::string(int fd)> peer_of_;
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> LogCalls(
    std::function<std::string(int fd)> peer_of) {
  return std::make_unique<LoggedCalls>(std::move(peer_of));
}

InferenceCallbacks::InferenceCallbacks() = default;
InferenceCallbacks::~InferenceCallbacks() = default;

UnaryCall::UnaryCall() = default;
UnaryCall::~UnaryCall() = default;

void UnaryCall::WhenCancelled(std::function<void()> cancel) {
  cancel_ = std::move(cancel);
  fence_.Pass();
}

void UnaryCall::OnCancel() {
  fence_.Pass();
  if (cancel_) cancel_();
}

void UnaryCall::End(const grpc::Status& status) {
  fence_.Pass();
  Finish(status);
}

void UnaryCall::OnDone() {
  fence_.Pass();
  delete this;
}

GenerateReactor::GenerateReactor() = default;
GenerateReactor::~GenerateReactor() = default;

void GenerateReactor::Write(const v1::GenerateResponse* response) { StartWrite(response); }

void GenerateReactor::WriteAndEnd(const v1::GenerateResponse* response) {
  StartWriteAndFinish(response, grpc::WriteOptions(), grpc::Status::OK);
}

void GenerateReactor::End(const grpc::Status& status) { Finish(status); }

grpc::ServerWriteReactor<v1::GenerateResponse>* RefuseGenerate(const grpc::Status& status) {
  return new RefusedGenerate(status);
}

std::string_view FindMetadata(const grpc::CallbackServerContext& context, std::string_view key) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(grpc::string_ref(key.data(), key.size()));
  if (found == metadata.end()) return {};
  return std::string_view(found->second.data(), found->second.size());
}

}  // namespace millrace
