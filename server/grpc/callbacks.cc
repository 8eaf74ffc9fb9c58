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

// Watches a call's end.
class WatchedCall final : public grpc::experimental::Interceptor {
 public:
  WatchedCall(const char* method, std::optional<std::string> peer, const CallLog& log)
      : method_(method), peer_(std::move(peer)), log_(log) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* call) override {
    if (call->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_STATUS)) {
      log_.OnEnd(method_, NameBrokenMessage(*call), began_, peer_);
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
    call.ModifySendStatus(BrokenMessage(method_));
    return grpc::StatusCode::INVALID_ARGUMENT;
  }

  const char* const method_;
  const std::optional<std::string> peer_;
  const CallLog& log_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

class WatchedCalls final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit WatchedCalls(const CallLog& log) : log_(log) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* call) override {
    if (std::string_view(call->method()) == kGenerateMethod) return nullptr;
    return new WatchedCall(call->method(), log_.PeerOf(*call->server_context()), log_);
  }

 private:
  const CallLog& log_;
};

}  // namespace

bool IsMethod(std::string_view path) {
  std::string name(path.substr(std::min<size_t>(path.size(), 1)));
  std::replace(name.begin(), name.end(), '/', '.');
  return google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(name) != nullptr;
}

grpc::Status BrokenMessage(std::string_view method) {
  return {grpc::StatusCode::INVALID_ARGUMENT,
          StrCat("the message of ", method,
                 " is not valid; allowed: a protobuf of the type that the method takes")};
}

CallLog::CallLog(std::function<std::string(int fd)> peer_of,
                 std::function<void(const char* method, grpc::StatusCode code)> on_end)
    : peer_of_(std::move(peer_of)), on_end_(std::move(on_end)) {}

std::optional<std::string> CallLog::PeerOf(const grpc::ServerContextBase& context) const {
  if (!kLog.Enabled(LogLevel::kDebug)) return std::nullopt;
  const auto fd = ConnectionOf(context);
  return fd ? peer_of_(*fd) : "";
}

void CallLog::OnEnd(const char* method, grpc::StatusCode code,
                    std::chrono::steady_clock::time_point began,
                    const std::optional<std::string>& peer) const {
  on_end_(method, code);
  if (!peer) return;
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  kLog.Debug(method, " ", absl::StatusCodeToString(static_cast<absl::StatusCode>(code)), " ",
             took.count(), " ms, ", *peer);
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> WatchCalls(
    const CallLog& log) {
  return std::make_unique<WatchedCalls>(log);
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

std::optional<TraceContext> TraceOf(const grpc::ServerContextBase& context) {
  return ParseTraceContext(FindMetadata(context, "traceparent"),
                           FindMetadata(context, "tracestate"));
}

std::string_view FindMetadata(const grpc::ServerContextBase& context, std::string_view key) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(grpc::string_ref(key.data(), key.size()));
  if (found == metadata.end()) return {};
  return std::string_view(found->second.data(), found->second.size());
}

}  // namespace millrace
