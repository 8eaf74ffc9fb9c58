#include "server/grpc/generate_queue.h"

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/slice.h>

#include <chrono>
#include <limits>
#include <utility>

namespace millrace {
namespace {

// A request above this is read on a thread of its own, as the HTTP endpoint does it, too.
constexpr size_t kLargeBytes = 32 << 10;

grpc::ByteBuffer Serialize(const v1::GenerateResponse& response) {
  const size_t size = response.ByteSizeLong();
  grpc_slice bytes = grpc_slice_malloc(size);
  response.SerializeWithCachedSizesToArray(GRPC_SLICE_START_PTR(bytes));
  const grpc::Slice slice(bytes, grpc::Slice::STEAL_REF);
  return {&slice, 1};
}

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

GenerateStream::GenerateStream() = default;

GenerateStream::~GenerateStream() {
  slot_->stream = nullptr;
  queue_->streams_.erase(this);
}

void GenerateStream::Accept(GenerateQueue& queue) {
  queue_ = &queue;
  queue.streams_.insert(this);
  slot_ = std::make_shared<StreamWakes::Slot>();
  slot_->stream = this;
  context_.AsyncNotifyWhenDone(&done_);
  queue.service_.RequestGenerate(&context_, &request_, &writer_, queue.queue_.get(),
                                 queue.queue_.get(), &called_);
}

void GenerateStream::AddTrailingMetadata(const char* key, const char* value) {
  context_.AddTrailingMetadata(key, value);
}

void GenerateStream::Write(const v1::GenerateResponse& response) {
  if (queue_->stopped_) return;
  writer_.Write(Serialize(response), &written_);
}

void GenerateStream::WriteAndEnd(const v1::GenerateResponse& response) {
  if (queue_->stopped_) return;
  NoteEnd(grpc::Status::OK);
  writer_.WriteAndFinish(Serialize(response), grpc::WriteOptions(), grpc::Status::OK, &ended_);
}

void GenerateStream::End(const grpc::Status& status) {
  if (queue_->stopped_) return;
  NoteEnd(status);
  writer_.Finish(status, &ended_);
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
    case Event::kWritten:
      OnWriteDone(ok);
      return;
    case Event::kEnded:
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
  if (request_.Length() > kLargeBytes && queue_->large_.TryPush(this) == PushResult::kPushed) {
    return;
  }
  ReadRequest();
  BeginOnce();
}

void GenerateStream::ReadRequest() {
  v1::GenerateRequest request;
  is_broken_ =
      !grpc::SerializationTraits<v1::GenerateRequest>::Deserialize(&request_, &request).ok();
  request_.Clear();
  if (!is_broken_) Prepare(std::move(request));
}

void GenerateStream::OnSlot() {
  if (has_begun_) return OnWake();
  if (is_read_) BeginOnce();
}

void GenerateStream::BeginOnce() {
  has_begun_ = true;
  if (is_broken_) return End(BrokenMessage(kGenerateMethod));
  Begin();
}

// ---- GenerateQueue ----

GenerateQueue::GenerateQueue(InferenceCallbacks& service, const CallLog& log,
                             std::unique_ptr<grpc::ServerCompletionQueue> queue,
                             NewStream new_stream)
    : service_(service),
      log_(log),
      queue_(std::move(queue)),
      new_stream_(std::move(new_stream)),
      wakes_(std::make_shared<StreamWakes>(*queue_)),
      large_(std::numeric_limits<size_t>::max()) {}

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

}  // namespace millrace
