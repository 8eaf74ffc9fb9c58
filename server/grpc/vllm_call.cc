#include "server/grpc/vllm_call.h"

#include <utility>

#include "base/status.h"
#include "server/grpc/convert.h"
#include "server/grpc/generate_call.h"
#include "server/grpc/inference_service.h"

namespace millrace {

void VllmCall::Begin(Engine& engine, GenerateRequest request) {
  {
    const std::lock_guard lock(mutex_);
    self_ = shared_from_this();
  }
  auto ready = [weak = weak_from_this()] {
    if (const auto alive = weak.lock()) alive->Pump();
  };
  auto streams = engine.Generate(std::move(request), std::move(ready));
  {
    const std::lock_guard lock(mutex_);
    streams_ = std::move(streams);
    unfinished_ = streams_.size();
    for (size_t i = 0; i < streams_.size(); ++i) {
      choices_.emplace_back(static_cast<uint32_t>(i), output_);
    }
    if (cancelled_ || aborted_) CancelAll();
  }
  Pump();  // `ready` may have come before the streams did.
}

void VllmCall::Abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  if (!finished_) CancelAll();
}

void VllmCall::CancelAll() {
  for (const auto& stream : streams_) stream->Cancel(CancelReason::kClientGone);
}

std::optional<OutputEvent> VllmCall::NextEvent(size_t* index) {
  if (output_.prompt_logprobs.has_value() && prompt_ == nullptr && !aborted_) {
    *index = 0;
    return streams_.empty() ? std::nullopt : streams_.front()->Next();
  }
  for (size_t i = 0; i < streams_.size(); ++i) {
    *index = next_;
    next_ = (next_ + 1) % streams_.size();
    if (std::optional<OutputEvent> event = streams_[*index]->Next()) return event;
  }
  return std::nullopt;
}

absl::Status VllmCall::Fill() {
  if (written_ < pending_.size()) return absl::OkStatus();
  pending_.clear();
  written_ = 0;
  while (pending_.empty()) {
    size_t index = 0;
    const std::optional<OutputEvent> event = NextEvent(&index);
    if (!event.has_value()) break;
    if (event->echo) {
      prompt_ = InputLogprobs(event->details, *output_.prompt_logprobs);
      for (VllmChoice& choice : choices_) choice.ShowPrompt(prompt_);
      continue;
    }
    const bool cancelled =
        event->finish.has_value() && event->finish->reason == FinishReason::kCancelled;
    if (cancelled && aborted_) {
      choices_[index].Abort(pending_);
    } else {
      if (event->finish.has_value()) MILLRACE_RETURN_IF_ERROR(event->finish->status);
      choices_[index].Add(*event, pending_);
    }
    if (event->finish.has_value()) --unfinished_;
  }
  return absl::OkStatus();
}

void VllmCall::Pump() {
  const std::lock_guard lock(mutex_);
  if (writing_ || finished_) return;
  if (const absl::Status status = Fill(); !status.ok()) {
    CancelAll();
    return FinishWith(status);
  }
  if (written_ == pending_.size()) return;
  response_.Swap(&pending_[written_++]);
  writing_ = true;
  if (unfinished_ == 0 && written_ == pending_.size()) {
    finished_ = true;
    WriteAndEnd(response_);
  } else {
    Write(response_);
  }
}

void VllmCall::FinishWith(const absl::Status& status) {
  finished_ = true;
  AddRetryHint(context_, status);
  End(ToGrpc(status));
}

void VllmCall::OnWriteDone(bool ok) {
  {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (finished_) return;
    if (!ok) {
      // The client is gone: what remains is to end the call.
      CancelAll();
      return FinishWith(GoneStatus(*context_));
    }
  }
  Pump();
}

void VllmCall::OnCancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  if (!finished_) CancelAll();
}

void VllmCall::OnDone() {
  std::shared_ptr<VllmCall> self;  // goes away last
  {
    // Taken before all else that this thread touches, so that it sees what others wrote.
    const std::lock_guard lock(mutex_);
    self.swap(self_);
  }
  on_done_();
}

}  // namespace millrace
