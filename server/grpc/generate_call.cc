#include "server/grpc/generate_call.h"

#include <utility>

#include "server/grpc/convert.h"

namespace millrace {

void AddRetryHint(grpc::CallbackServerContext* context, const absl::Status& status) {
  if (absl::IsResourceExhausted(status) || absl::IsUnavailable(status)) {
    context->AddTrailingMetadata("retry-after", "1");
  }
}

GenerateCall* GenerateCall::Begin(grpc::CallbackServerContext* context, Engine& engine,
                                  GenerateRequest request) {
  const std::shared_ptr<GenerateCall> call(new GenerateCall(context));
  {
    const std::lock_guard lock(call->mutex_);
    call->self_ = call;
    call->first_request_id_ = request.id;
  }
  auto ready = [weak = std::weak_ptr<GenerateCall>(call)] {
    if (const auto alive = weak.lock()) alive->Pump();
  };
  std::shared_ptr<ResponseStream> stream = engine.Generate(std::move(request), std::move(ready));
  {
    const std::lock_guard lock(call->mutex_);
    call->stream_ = std::move(stream);
    if (call->cancelled_) call->stream_->Cancel(CancelReason::kClientGone);
  }
  call->Pump();  // `ready` may have come before the stream did.
  return call.get();
}

void GenerateCall::Pump() {
  const std::lock_guard lock(mutex_);
  if (stream_ == nullptr || writing_ || finished_) return;
  std::optional<OutputEvent> event = stream_->Next();
  if (!event.has_value()) return;

  const std::optional<absl::Status> end =
      event->finish ? std::optional(event->finish->status) : std::nullopt;
  if (end.has_value() && !end->ok()) {
    FinishWith(*end);
    return;
  }
  response_ = ToProto(*std::move(event));
  response_.set_request_id(std::exchange(first_request_id_, ""));
  writing_ = true;
  if (end.has_value()) {
    finished_ = true;
    WriteAndEnd(&response_);
  } else {
    Write(&response_);
  }
}

void GenerateCall::FinishWith(const absl::Status& status) {
  finished_ = true;
  AddRetryHint(context_, status);
  End(ToGrpc(status));
}

void GenerateCall::OnWriteDone(bool ok) {
  {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (finished_) return;
    if (!ok) {
      // The client is gone: what remains is to end the call.
      stream_->Cancel(CancelReason::kClientGone);
      FinishWith(absl::CancelledError("the client went away"));
      return;
    }
  }
  Pump();
}

void GenerateCall::OnCancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  if (stream_ != nullptr && !finished_) stream_->Cancel(CancelReason::kClientGone);
}

void GenerateCall::OnDone() {
  std::shared_ptr<GenerateCall> self;  // goes away last, after the lock
  const std::lock_guard lock(mutex_);
  self.swap(self_);
}

}  // namespace millrace
