#include "server/grpc/callbacks.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/log.h"
#include "base/log_fields.h"
#include "base/strings.h"
#include "engine/request/error_field.h"
#include "server/grpc/access.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kGrpc);

// Watches a call's end.
class WatchedCall final : public grpc::experimental::Interceptor {
 public:
  WatchedCall(const char* method, std::optional<Caller> caller, const CallLog& log)
      : method_(method), caller_(std::move(caller)), log_(log) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* call) override {
    if (call->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_STATUS)) {
      log_.OnEnd(method_, call->GetSendStatus(), began_, caller_);
    }
    call->Proceed();
  }

 private:
  const char* const method_;
  const std::optional<Caller> caller_;
  const CallLog& log_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

class WatchedCalls final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit WatchedCalls(const CallLog& log) : log_(log) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* call) override {
    if (std::string_view(call->method()) == kGenerateMethod) return nullptr;
    return new WatchedCall(call->method(), log_.CallerOf(*call->server_context()), log_);
  }

 private:
  const CallLog& log_;
};

// Returns the field that a refusal is about; empty if it names none.
std::string FieldOf(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OUT_OF_RANGE:
      return "prompt";  // it is too long
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::UNIMPLEMENTED:
      return LeadingField(status.error_message());
    default:
      return "";
  }
}

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
                 std::function<std::string(const grpc::ServerContextBase& context)> tenant_of,
                 std::function<void(const char* method, grpc::StatusCode code)> on_end)
    : peer_of_(std::move(peer_of)), tenant_of_(std::move(tenant_of)), on_end_(std::move(on_end)) {}

std::optional<Caller> CallLog::CallerOf(const grpc::ServerContextBase& context) const {
  if (!kLog.Enabled(LogLevel::kDebug)) return std::nullopt;
  const auto fd = ConnectionOf(context);
  return Caller{.address = fd ? peer_of_(*fd) : "", .tenant = tenant_of_(context)};
}

void CallLog::OnEnd(const char* method, const grpc::Status& status,
                    std::chrono::steady_clock::time_point began,
                    const std::optional<Caller>& caller,
                    const std::optional<CallTokens>& tokens) const {
  on_end_(method, status.error_code());
  if (!caller) return;
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  const std::string code =
      absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()));
  std::string line = StrCat(method, " ", code, " ", took.count(), " ms, ", caller->address);
  std::vector<LogField> fields = {{"method", method},
                                  {"status", code},
                                  {"duration_ms", StrCat(took.count()), true},
                                  {"client", caller->address}};
  const auto add = [&](std::string_view name, std::string value, bool is_number) {
    if (value.empty()) return;
    line += StrCat(" ", name, "=", value);
    fields.push_back({name, std::move(value), is_number});
  };
  if (status.ok() && tokens.has_value()) {
    add("prompt_tokens", StrCat(tokens->prompt), true);
    add("completion_tokens", StrCat(tokens->completion), true);
  }
  add("tenant", caller->tenant, false);
  add("param", FieldOf(status), false);
  LogWithFields(LogLevel::kDebug, LogComponent::kGrpc, "", line, fields);
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> WatchCalls(
    const CallLog& log) {
  return std::make_unique<WatchedCalls>(log);
}

grpc::Slice SerializeToSlice(const google::protobuf::Message& message) {
  const size_t size = message.ByteSizeLong();
  grpc_slice bytes = grpc_slice_malloc(size);
  message.SerializeWithCachedSizesToArray(GRPC_SLICE_START_PTR(bytes));
  return {bytes, grpc::Slice::STEAL_REF};
}

grpc::ByteBuffer Serialize(const google::protobuf::Message& message) {
  const grpc::Slice slice = SerializeToSlice(message);
  return {&slice, 1};
}

ServerCall::ServerCall() = default;
ServerCall::~ServerCall() = default;

void ServerCall::Bind(CallEnd& end) {
  std::optional<CallEnd::Step> early;
  {
    const std::lock_guard lock(mutex_);
    end_ = &end;
    early.swap(early_);
  }
  if (early.has_value()) end.Do(*std::move(early));
}

void ServerCall::OnMessage(const google::protobuf::Message* /*message*/) {}
void ServerCall::OnWriteDone(bool /*ok*/) {}
void ServerCall::OnCancel() {}

void ServerCall::Write(const google::protobuf::Message& response) {
  Do({.bytes = Serialize(response), .end = std::nullopt});
}

void ServerCall::WriteAndEnd(const google::protobuf::Message& response) {
  Do({.bytes = Serialize(response), .end = grpc::Status::OK});
}

void ServerCall::End(const grpc::Status& status) { Do({.bytes = std::nullopt, .end = status}); }

void ServerCall::Do(CallEnd::Step step) {
  CallEnd* end = nullptr;
  {
    const std::lock_guard lock(mutex_);
    end = end_;
    if (end == nullptr) {
      early_ = std::move(step);
      return;
    }
  }
  end->Do(std::move(step));
}

void ServerCall::ReadNext() {
  CallEnd* end = nullptr;
  {
    const std::lock_guard lock(mutex_);
    end = end_;
  }
  if (end != nullptr) end->Read();
}

UnaryCall::~UnaryCall() = default;

void UnaryCall::WhenCancelled(std::function<void()> cancel) {
  cancel_ = std::move(cancel);
  Pass();
}

void UnaryCall::OnCancel() {
  Pass();
  if (cancel_) cancel_();
}

void UnaryCall::OnDone() {
  Pass();
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
