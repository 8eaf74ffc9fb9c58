#include "engine/infer_engine.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "engine/request/request.h"

namespace millrace {
namespace {

std::optional<size_t> Find(const std::vector<TensorSpec>& specs, std::string_view name) {
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name == name) return i;
  }
  return std::nullopt;
}

std::string Names(const std::vector<TensorSpec>& specs) {
  std::vector<std::string> names;
  for (const TensorSpec& spec : specs) names.push_back(spec.name);
  return JoinList(names);
}

// Bound on the inputs of calls that wait; one call may be as large as a message, 32 MiB.
constexpr int64_t kMaxWaitingBytes = int64_t{256} << 20;

int64_t Bytes(const InferCall& call) {
  int64_t bytes = 0;
  for (const Tensor& input : call.inputs) bytes += static_cast<int64_t>(input.data.size());
  return bytes;
}

absl::Status ShuttingDown() {
  return WithRetryAfter(absl::UnavailableError("the server is shutting down"), absl::Seconds(5));
}

InferEnd EndOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return InferEnd::kOk;
    case absl::StatusCode::kInvalidArgument:
      return InferEnd::kInvalid;
    case absl::StatusCode::kResourceExhausted:
      return InferEnd::kQueueFull;
    case absl::StatusCode::kUnavailable:
      return InferEnd::kUnavailable;
    case absl::StatusCode::kCancelled:
      return InferEnd::kCancelled;
    case absl::StatusCode::kDeadlineExceeded:
      return InferEnd::kDeadline;
    default:
      return InferEnd::kError;
  }
}

}  // namespace

absl::StatusOr<std::vector<Tensor>> OrderInputs(const std::vector<TensorSpec>& specs,
                                                std::vector<NamedTensor> inputs) {
  std::vector<std::optional<Tensor>> found(specs.size());
  for (NamedTensor& input : inputs) {
    const std::optional<size_t> index = Find(specs, input.name);
    if (!index.has_value()) {
      return absl::InvalidArgumentError(
          StrCat("inputs: there is no \"", Printable(input.name), "\"; allowed: ", Names(specs)));
    }
    if (found[*index].has_value()) {
      return absl::InvalidArgumentError(
          StrCat("inputs: ", input.name, " is there twice; allowed: once"));
    }
    found[*index] = std::move(input.tensor);
  }
  std::vector<Tensor> ordered;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!found[i].has_value()) {
      return absl::InvalidArgumentError(
          StrCat("inputs: ", specs[i].name, " is missing; required: ", Names(specs)));
    }
    ordered.push_back(*std::move(found[i]));
  }
  return ordered;
}

absl::StatusOr<std::vector<size_t>> ChooseOutputs(const std::vector<TensorSpec>& specs,
                                                  const std::vector<std::string>& names) {
  std::vector<size_t> chosen;
  for (const std::string& name : names) {
    const std::optional<size_t> index = Find(specs, name);
    if (!index.has_value()) {
      return absl::InvalidArgumentError(
          StrCat("outputs: there is no \"", Printable(name), "\"; allowed: ", Names(specs)));
    }
    if (std::ranges::find(chosen, *index) != chosen.end()) {
      return absl::InvalidArgumentError(
          StrCat("outputs: ", name, " is there twice; allowed: once"));
    }
    chosen.push_back(*index);
  }
  for (size_t i = 0; names.empty() && i < specs.size(); ++i) chosen.push_back(i);
  return chosen;
}

InferEngine::InferEngine(InferOptions options, std::unique_ptr<TensorModel> model,
                         InferMetrics& metrics)
    : options_(std::move(options)),
      model_(std::move(model)),
      metrics_(metrics),
      created_(absl::Now()),
      worker_([this] { Work(); }) {}

InferEngine::~InferEngine() {
  BeginDrain();
  CancelAll();
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

absl::Status InferEngine::Admit(const std::shared_ptr<InferCall>& call) {
  const std::lock_guard lock(mutex_);
  if (!call->end.ok()) return call->end;
  if (draining_) return ShuttingDown();
  if (waiting_.size() >= static_cast<size_t>(options_.max_waiting)) {
    return QueueFull(StrCat(waiting_.size(), " requests wait; allowed: ", options_.max_waiting));
  }
  const int64_t bytes = Bytes(*call);
  if (!waiting_.empty() && waiting_bytes_ + bytes > kMaxWaitingBytes) {
    return QueueFull(StrCat("requests of ", waiting_bytes_, " bytes wait, and this one has ", bytes,
                            "; allowed: ", kMaxWaitingBytes));
  }
  call->arrival = options_.clock->Now();
  waiting_.push_back(call);
  waiting_bytes_ += bytes;
  ++unended_;
  metrics_.SetWaiting(waiting_.size());
  return absl::OkStatus();
}

void InferEngine::Infer(const std::shared_ptr<InferCall>& call) {
  absl::Status admitted = CheckInputs(info().inputs, call->inputs);
  if (admitted.ok()) admitted = Admit(call);
  if (admitted.ok()) {
    changed_.notify_all();
    return;
  }
  metrics_.OnEnd(EndOf(admitted));
  call->done(std::move(admitted));
}

void InferEngine::Cancel(const std::shared_ptr<InferCall>& call) {
  {
    const std::lock_guard lock(mutex_);
    if (call->end.ok()) call->end = absl::CancelledError("the client went away");
    const auto at = std::ranges::find(waiting_, call);
    if (at == waiting_.end()) return;
    waiting_.erase(at);
    waiting_bytes_ -= Bytes(*call);
    metrics_.SetWaiting(waiting_.size());
  }
  End(*call, call->end);
}

void InferEngine::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closed_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    running_ = std::move(waiting_.front());
    waiting_.pop_front();
    waiting_bytes_ -= Bytes(*running_);
    metrics_.SetWaiting(waiting_.size());
    running_since_ = options_.clock->Now();
    const std::shared_ptr<InferCall> call = running_;
    lock.unlock();
    absl::StatusOr<std::vector<Tensor>> result = Run(*call);
    lock.lock();
    running_ = nullptr;
    if (!call->end.ok()) result = call->end;
    lock.unlock();
    End(*call, std::move(result));
    lock.lock();
  }
}

absl::StatusOr<std::vector<Tensor>> InferEngine::Run(InferCall& call) {
  if (call.deadline.has_value() && absl::Now() >= *call.deadline) {
    return absl::DeadlineExceededError("the deadline passed before the request's turn came");
  }
  const SteadyTime begin = options_.clock->Now();
  auto result = model_->Run(std::move(call.inputs));
  metrics_.OnRun(begin - call.arrival, options_.clock->Now() - begin);
  return result;
}

void InferEngine::End(InferCall& call, absl::StatusOr<std::vector<Tensor>> result) {
  metrics_.OnEnd(EndOf(result.status()));
  call.done(std::move(result));
  call.done = nullptr;  // lets go of what it holds
  const std::lock_guard lock(mutex_);
  --unended_;
  changed_.notify_all();
}

Health InferEngine::health() const {
  const std::lock_guard lock(mutex_);
  const bool stalled =
      running_ != nullptr && options_.clock->Now() - running_since_ >= options_.stall_timeout;
  return stalled ? Health::kStalled : Health::kServing;
}

void InferEngine::BeginDrain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
}

bool InferEngine::WaitIdle(SteadyTime deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [this] { return unended_ == 0; });
}

void InferEngine::CancelAll() {
  Calls ended;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(waiting_);
    waiting_bytes_ = 0;
    metrics_.SetWaiting(0);
    for (const auto& call : ended) call->end = ShuttingDown();
    if (running_ != nullptr && running_->end.ok()) running_->end = ShuttingDown();
  }
  for (const auto& call : ended) End(*call, call->end);
}

}  // namespace millrace
