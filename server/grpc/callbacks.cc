#include "server/grpc/callbacks.h"

#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "base/log.h"

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
  explicit LoggedCall(const char* method) : method_(method) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* call) override {
    if (call->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_STATUS)) {
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - began_;
      const auto code = static_cast<absl::StatusCode>(call->GetSendStatus().error_code());
      kLog.Debug(method_, " ", absl::StatusCodeToString(code), " ", took.count(), " ms");
    }
    call->Proceed();
  }

 private:
  const char* const method_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

class LoggedCalls final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* call) override {
    return kLog.Enabled(LogLevel::kDebug) ? new LoggedCall(call->method()) : nullptr;
  }
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> LogCalls() {
  return std::make_unique<LoggedCalls>();
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
