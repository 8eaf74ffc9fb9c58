#include "server/grpc/generate_queue.h"

#include <grpc/grpc.h>
#include <grpcpp/impl/codegen/rpc_service_method.h>

#include <chrono>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "server/grpc/inference_service.h"
#include "server/grpc/unread_calls.h"

namespace millrace {
namespace {

// A request above this is read on a thread of its own, as the HTTP endpoint does it, too.
constexpr size_t kLargeBytes = 32 << 10;

// While requests of so many bytes wait for the thread that reads them, further ones stay where they
// are, but for those of tenants of whom none waits: of those gRPC holds a window, 64 KiB.
constexpr size_t kHeldBytes = 8 << 20;

}  // namespace

// ---- StreamWakes ----

void StreamWakes::Push(const std::shared_ptr<Slot>& slot) {
  const std::lock_guard lock(mutex_);
  if (queue_ == nullptr) return;
  slots_.push_back(slot);
  if (slots_.size() > 1) return;  // the thread has been told
  alarm_.Set(queue_, std::chrono::system_clock::time_point(), this);
}

void StreamWakes::Deliver() {
  {
    const std::lock_guard lock(mutex_);
    batch_.swap(slots_);
  }
  for (const std::shared_ptr<Slot>& slot : batch_) {
    slot->queued.store(false);  // before the call: what comes during it wakes again
    if (slot->stream != nullptr) slot->stream->OnSlot();
  }
  batch_.clear();
}

void StreamWakes::Close() {
  const std::lock_guard lock(mutex_);
  queue_ = nullptr;
  slots_.clear();
}

// ---- GenerateStream ----

GenerateMethod::GenerateMethod() {
  AddMethod(new grpc::internal::RpcServiceMethod(
      kGenerateMethod, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
  MarkMethodRaw(0);
}

GenerateMethod::~GenerateMethod() = default;

GenerateStream::GenerateStream() = default;

GenerateStream::~GenerateStream() {
  EndParts();
  slot_->stream = nullptr;
  queue_->streams_.erase(this);
}

void GenerateStream::Accept(GenerateQueue& queue) {
  queue_ = &queue;
  queue.streams_.insert(this);
  slot_ = std::make_shared<StreamWakes::Slot>();
  slot_->stream = this;
  context_.AsyncNotifyWhenDone(&done_);
  queue.method_.RequestAsyncBidiStreaming(0, &context_, &call_, queue.queue_.get(),
                                          queue.queue_.get(), &called_);
}

void GenerateStream::AddTrailingMetadata(const char* key, const char* value) {
  context_.AddTrailingMetadata(key, value);
}

bool GenerateStream::MayAddParts() {
  if (queue_->adds_parts_ == nullptr || queue_->adds_parts_ == this) return true;
  if (!std::exchange(awaits_parts_, true)) queue_->await_parts_.push_back(slot_);
  return false;
}

void GenerateStream::AddPart(const v1::GenerateResponse& part) {
  queue_->adds_parts_ = this;
  parts_.push_back(SerializeToSlice(part));
  MakeWake()();
}

void GenerateStream::EndParts() {
  parts_.clear();
  if (queue_->adds_parts_ != this) return;
  queue_->adds_parts_ = nullptr;
  for (const auto& slot : std::exchange(queue_->await_parts_, {})) {
    if (slot->stream == nullptr) continue;
    slot->stream->awaits_parts_ = false;
    slot->stream->MakeWake()();
  }
}

grpc::ByteBuffer GenerateStream::TakeMessage(const v1::GenerateResponse& response) {
  parts_.push_back(SerializeToSlice(response));
  grpc::ByteBuffer message(parts_.data(), parts_.size());
  EndParts();
  return message;
}

absl::Status GenerateStream::Write(const v1::GenerateResponse& response) {
  if (queue_->stopped_) return absl::OkStatus();
  const grpc::ByteBuffer message = TakeMessage(response);
  MILLRACE_RETURN_IF_ERROR(ChargeUnread(message));
  call_.Write(message, &written_);
  return absl::OkStatus();
}

absl::Status GenerateStream::WriteAndEnd(const v1::GenerateResponse& response) {
  if (queue_->stopped_) return absl::OkStatus();
  const grpc::ByteBuffer message = TakeMessage(response);
  MILLRACE_RETURN_IF_ERROR(ChargeUnread(message));
  NoteEnd(grpc::Status::OK);
  call_.WriteAndFinish(message, grpc::WriteOptions(), grpc::Status::OK, &ended_);
  return absl::OkStatus();
}

absl::Status GenerateStream::ChargeUnread(const grpc::ByteBuffer& message) {
  const size_t bytes = message.Length();
  if (bytes < kChargedBytes) return absl::OkStatus();
  unread_.emplace(queue_->outputs_, MakeWake());
  if (unread_->Charge(OwnerOf(context_, payer_), bytes, nullptr, Clock::Real().Now())) {
    return absl::OkStatus();
  }
  return NoMemoryForMessage(unread_->full());
}

void GenerateStream::End(const grpc::Status& status) {
  EndParts();
  if (queue_->stopped_) return;
  NoteEnd(status);
  call_.Finish(status, &ended_);
}

void GenerateStream::NoteEnd(const grpc::Status& status) {
  ending_ = true;
  queue_->log_.OnEnd(kGenerateMethod, status, began_, caller_, tokens_);
}

void GenerateStream::CountTokens(int64_t prompt, int64_t completion) {
  if (prompt > 0) tokens_.prompt = prompt;
  tokens_.completion += completion;
}

std::function<void()> GenerateStream::MakeWake() const {
  return [slot = slot_, wakes = queue_->wakes_] {
    if (!slot->queued.exchange(true)) wakes->Push(slot);
  };
}

void GenerateStream::OnEvent(Event event, bool ok) {
  switch (event) {
    case Event::kCall:
      OnCall(ok);
      return;
    case Event::kRead:
      OnRead(ok);
      return;
    case Event::kWritten:
      unread_.reset();
      OnWriteDone(ok);
      return;
    case Event::kEnded:
      unread_.reset();
      has_ended_ = true;
      break;
    case Event::kDone:
      is_done_ = true;
      if (!ending_ && context_.IsCancelled()) OnCancel();
      break;
  }
  if (has_ended_ && is_done_) delete this;
}

void GenerateStream::OnCall(bool ok) {
  if (!ok) {  // the server takes no more calls
    delete this;
    return;
  }
  queue_->AcceptNext();
  began_ = std::chrono::steady_clock::now();
  caller_ = queue_->log_.CallerOf(context_);
  absl::StatusOr<std::string> payer = Admit();
  if (!payer.ok()) {
    refused_ = payer.status();
    return BeginOnce();
  }
  payer_ = *std::move(payer);
  message_.emplace(queue_->budget_, payer_);
  queue_->turns_.Add(payer_, this);
  queue_->ReadWaiting();
}

void GenerateStream::Read() { call_.Read(&request_, &read_); }

void GenerateStream::OnRead(bool ok) {
  if (!ok) {
    // It is gone, or has ended its side without a message.
    refused_ = grpc_call_failed_before_recv_message(context_.c_call())
                   ? GoneStatus(context_)
                   : absl::InvalidArgumentError(BrokenMessage(kGenerateMethod).error_message());
  }
  const size_t size = request_.Length();
  if (ok && size > kLargeBytes && queue_->large_.TryPush(this) == PushResult::kPushed) {
    large_bytes_ = size;
    queue_->turns_.Hold(payer_, static_cast<ptrdiff_t>(size));
    return;
  }
  if (ok) ReadRequest();
  BeginOnce();
}

void GenerateStream::ReadRequest() {
  if (is_done_) {  // nobody waits for it any more
    refused_ = GoneStatus(context_);
    return;
  }
  v1::GenerateRequest request;
  refused_ = ReadMessage(kGenerateMethod, queue_->bounds_, {}, request_, *message_, request);
  if (refused_.ok()) Prepare(std::move(request));
}

void GenerateStream::OnSlot() {
  if (unread_.has_value() && unread_->evicted()) context_.TryCancel();
  if (has_begun_) return OnWake();
  if (!is_read_) return;
  queue_->turns_.Hold(payer_, -static_cast<ptrdiff_t>(std::exchange(large_bytes_, 0)));
  queue_->ReadWaiting();
  BeginOnce();
}

void GenerateStream::BeginOnce() {
  has_begun_ = true;
  Begin(refused_);
  message_.reset();
}

// ---- GenerateQueue ----

GenerateQueue::GenerateQueue(GenerateMethod& method, const CallLog& log,
                             std::unique_ptr<grpc::ServerCompletionQueue> queue,
                             TenantBudget& budget, OutputBudget& outputs, NewStream new_stream)
    : method_(method),
      log_(log),
      queue_(std::move(queue)),
      budget_(budget),
      outputs_(outputs),
      bounds_(v1::GenerateRequest::descriptor()),
      new_stream_(std::move(new_stream)),
      wakes_(std::make_shared<StreamWakes>(*queue_)),
      large_(std::numeric_limits<size_t>::max()),
      turns_(kHeldBytes) {}

GenerateQueue::~GenerateQueue() { Stop(); }

void GenerateQueue::Start() {
  AcceptNext();
  reader_ = std::thread([this] { ReadLargeRequests(); });
  thread_ = std::thread([this] { Run(); });
}

void GenerateQueue::Stop() {
  if (std::exchange(stops_, true)) return;
  wakes_->Close();
  if (!thread_.joinable()) {
    queue_->Shutdown();
    return Run();
  }
  // The thread itself shuts the queue down, so that it puts nothing on it afterwards.
  stop_.Set(queue_.get(), std::chrono::system_clock::time_point(), &stop_);
  thread_.join();
}

void GenerateQueue::Run() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) {
    if (tag == wakes_.get()) {
      wakes_->Deliver();
    } else if (tag == &stop_) {
      stopped_ = true;
      queue_->Shutdown();
    } else {
      const auto& [stream, event] = *static_cast<GenerateStream::Tag*>(tag);
      stream->OnEvent(event, ok);
    }
  }
  large_.Close();
  if (reader_.joinable()) reader_.join();
  // Calls that were cancelled, and whose engine has not ended them yet.
  while (!streams_.empty()) delete *streams_.begin();
}

void GenerateQueue::ReadLargeRequests() {
  while (const std::optional<GenerateStream*> stream = large_.Pop()) {
    const std::shared_ptr<StreamWakes::Slot> slot = (*stream)->slot_;
    (*stream)->ReadRequest();
    (*stream)->is_read_ = true;  // from now on it is the queue's thread's
    if (!slot->queued.exchange(true)) wakes_->Push(slot);
  }
}

void GenerateQueue::AcceptNext() {
  if (!stopped_) new_stream_()->Accept(*this);
}

void GenerateQueue::ReadWaiting() {
  while (!stopped_) {
    GenerateStream* const stream = turns_.Next();
    if (stream == nullptr) return;
    stream->Read();
  }
}

}  // namespace millrace
