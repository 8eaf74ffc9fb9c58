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
  auto streams = engine.Generate(std::move(request), std::move(ready));
  {
    const std::lock_guard lock(call->mutex_);
    call->streams_ = std::move(streams);
    call->unfinished_ = call->streams_.size();
    if (call->cancelled_) call->CancelAll();
  }
  call->Pump();  // `ready` may have come before the streams did.
  return call.get();
}

std::optional<OutputEvent> GenerateCall::NextEvent(int32_t* index) {
  for (size_t i = 0; i < streams_.size(); ++i) {
    *index = static_cast<int32_t>(next_);
    next_ = (next_ + 1) % streams_.size();
    if (std::optional<OutputEvent> event = streams_[*index]->Next()) return event;
  }
  return std::nullopt;
}

void GenerateCall::CancelAll() {
  for (const auto& stream : streams_) stream->Cancel(CancelReason::kClientGone);
}

void GenerateCall::Pump() {
  const std::lock_guard lock(mutex_);
  if (writing_ || finished_) return;
  int32_t index = 0;
  std::optional<OutputEvent> event = NextEvent(&index);
  if (!event.has_value()) return;

  const std::optional<absl::Status> end =
      event->finish ? std::optional(event->finish->status) : std::nullopt;
  if (end.has_value() && !end->ok()) {
    CancelAll();
    FinishWith(*end);
    return;
  }
  response_ = ToProto(*std::move(event));
  response_.set_index(index);
  response_.set_request_id(std::exchange(first_request_id_, ""));
  writing_ = true;
  if (end.has_value() && --unfinished_ == 0) {
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
      CancelAll();
      FinishWith(absl::CancelledError("the client went away"));
      return;
    }
  }
  Pump();
}

void GenerateCall::OnCancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  if (!finished_) CancelAll();
}

void GenerateCall::OnDone() {
  std::shared_ptr<GenerateCall> self;  // goes away last, after the lock
  const std::lock_guard lock(mutex_);
  self.swap(self_);
}

}  // namespace millrace
