#include "server/grpc/callbacks.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "base/log.h"
#include "base/strings.h"
#include "server/grpc/access.h"

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

using CallListener = std::function<void(const char* method, grpc::StatusCode code)>;

// Watches a call's end.
class WatchedCall final : public grpc::experimental::Interceptor {
 public:
  // `peer`: the client's address, if the call is to be logged.
  WatchedCall(const char* method, std::optional<std::string> peer, const CallListener& on_end)
      : method_(method), peer_(std::move(peer)), on_end_(on_end) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* call) override {
    if (call->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_STATUS)) {
      on_end_(method_, NameBrokenMessage(*call));
      if (peer_) Log(*call);
    }
    call->Proceed();
  }

 private:
  // gRPC refuses a method that is none, and a message that is no protobuf, before a handler sees
  // them, with one status and no message. Returns the code that the client gets.
  grpc::StatusCode NameBrokenMessage(grpc::experimental::InterceptorBatchMethods& call) const {
    const grpc::Status status = call.GetSendStatus();
    if (status.error_code() != grpc::StatusCode::UNIMPLEMENTED || !status.error_message().empty()) {
      return status.error_code();
    }
    if (!IsMethod(method_)) {
      call.ModifySendStatus({grpc::StatusCode::UNIMPLEMENTED,
                             StrCat("there is no method ", Printable(method_), " on this server")});
      return grpc::StatusCode::UNIMPLEMENTED;
    }
    call.ModifySendStatus(
        {grpc::StatusCode::INVALID_ARGUMENT,
         StrCat("the message of ", method_,
                " is not valid; allowed: a protobuf of the type that the method takes")});
    return grpc::StatusCode::INVALID_ARGUMENT;
  }

  void Log(grpc::experimental::InterceptorBatchMethods& call) const {
    const std::chrono::duration<double, std::milli> took =
        std::chrono::steady_clock::now() - began_;
    const auto code = static_cast<absl::StatusCode>(call.GetSendStatus().error_code());
    kLog.Debug(method_, " ", absl::StatusCodeToString(code), " ", took.count(), " ms, ", *peer_);
  }

  const char* const method_;
  const std::optional<std::string> peer_;
  const CallListener& on_end_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

class WatchedCalls final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  WatchedCalls(std::function<std::string(int fd)> peer_of, CallListener on_end)
      : peer_of_(std::move(peer_of)), on_end_(std::move(on_end)) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* call) override {
    std::optional<std::string> peer;
    if (kLog.Enabled(LogLevel::kDebug)) {
      const auto fd = ConnectionOf(*call->server_context());
      peer = fd ? peer_of_(*fd) : "";
    }
    return new WatchedCall(call->method(), std::move(peer), on_end_);
  }

 private:
  const std::function<std::string(int fd)> peer_of_;
  const CallListener on_end_;
};

}  // namespace

bool IsMethod(std::string_view path) {
  std::string name(path.substr(std::min<size_t>(path.size(), 1)));
  std::replace(name.begin(), name.end(), '/', '.');
  return google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(name) != nullptr;
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> WatchCalls(
    std::function<std::string(int fd)> peer_of, CallListener on_end) {
  return std::make_unique<WatchedCalls>(std::move(peer_of), std::move(on_end));
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

std::optional<TraceContext> TraceOf(const grpc::CallbackServerContext& context) {
  return ParseTraceContext(FindMetadata(context, "traceparent"),
                           FindMetadata(context, "tracestate"));
}

std::string_view FindMetadata(const grpc::CallbackServerContext& context, std::string_view key) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(grpc::string_ref(key.data(), key.size()));
  if (found == metadata.end()) return {};
  return std::string_view(found->second.data(), found->second.size());
}

}  // namespace millrace
