#include "server/grpc/unread_calls.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/strings.h"
#include "server/grpc/callbacks.h"
#include "server/grpc/convert.h"
#include "server/grpc/generate_call.h"

namespace millrace {
namespace {

using Hook = grpc::experimental::InterceptionHookPoints;

}  // namespace

OutputOwner OwnerOf(const grpc::ServerContextBase& context, std::string tenant) {
  const std::optional<int> connection = ConnectionOf(context);
  return {.tenant = std::move(tenant),
          .connection = connection ? StrCat(*connection) : "",
          .notes_taken = false};  // gRPC says when a message has gone, not how much of it
}

absl::Status NoMemoryForMessage(OutputBudget::Scope full) {
  return absl::ResourceExhaustedError(StrCat(
      "the responses that wait to be read leave no memory for this one, by the limit of the ",
      OutputScopeName(full)));
}

// One call.
class UnreadCall final : public grpc::experimental::Interceptor {
 public:
  UnreadCall(grpc::ServerContextBase& context, UnreadCalls& calls)
      : context_(context), calls_(calls), share_(calls.budget(), nullptr) {}
  ~UnreadCall() override { Release(); }

  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    if (batch->QueryInterceptionHookPoint(Hook::POST_SEND_MESSAGE)) Release();
    if (batch->QueryInterceptionHookPoint(Hook::PRE_SEND_MESSAGE)) OnMessage(*batch);
    batch->Proceed();
  }

  bool evicted() const { return share_.evicted(); }
  void Cancel() { context_.TryCancel(); }

 private:
  void OnMessage(grpc::experimental::InterceptorBatchMethods& batch) {
    grpc::ByteBuffer* const message = batch.GetSerializedSendMessage();
    const size_t bytes = message->Length();
    if (bytes < kChargedBytes) return;
    OutputOwner owner = OwnerOf(context_, calls_.access().TenantOf(context_));
    charged_ = true;
    calls_.Add(*this);
    if (share_.Charge(std::move(owner), bytes, nullptr, Clock::Real().Now())) return;
    Release();
    if (!batch.QueryInterceptionHookPoint(Hook::PRE_SEND_STATUS)) return context_.TryCancel();
    message->Clear();  // it is not sent
    batch.ModifySendStatus(ToGrpc(NoMemoryForMessage(share_.full())));
    batch.GetSendTrailingMetadata()->emplace(kRetryAfter, "1");
  }

  void Release() {
    if (!std::exchange(charged_, false)) return;
    calls_.Remove(*this);
    share_.Release();
  }

  grpc::ServerContextBase& context_;
  UnreadCalls& calls_;
  OutputBudget::Share share_;
  bool charged_ = false;
};

namespace {

class ChargedCalls final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit ChargedCalls(UnreadCalls& calls) : calls_(calls) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* call) override {
    if (std::string_view(call->method()) == kGenerateMethod) return nullptr;
    return new UnreadCall(*call->server_context(), calls_);
  }

 private:
  UnreadCalls& calls_;
};

}  // namespace

void UnreadCalls::Add(UnreadCall& call) {
  const std::lock_guard lock(mutex_);
  calls_.insert(&call);
}

void UnreadCalls::Remove(UnreadCall& call) {
  const std::lock_guard lock(mutex_);
  calls_.erase(&call);
}

void UnreadCalls::CancelEvicted() {
  const std::lock_guard lock(mutex_);
  std::vector<UnreadCall*> evicted;
  for (UnreadCall* const call : calls_) {
    if (call->evicted()) evicted.push_back(call);
  }
  for (UnreadCall* const call : evicted) {
    if (calls_.erase(call) > 0) call->Cancel();
  }
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> ChargeMessages(
    UnreadCalls& calls) {
  return std::make_unique<ChargedCalls>(calls);
}

}  // namespace millrace
