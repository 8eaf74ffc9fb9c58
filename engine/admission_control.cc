#include "engine/admission_control.h"

#include <string>
#include <utility>
#include <variant>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {

AdmissionControl::AdmissionControl(const EngineOptions* options, const EngineInfo* info,
                                   const StepLimits& limits, const TextSet* text, EngineLoop* loop,
                                   EngineMetrics* metrics)
    : options_(*options),
      info_(*info),
      limits_(limits),
      text_(*text),
      loop_(*loop),
      metrics_(*metrics) {}

// ---- Checks ----

// Ids are checked against the model's vocabulary, which may be padded beyond the tokenizer's: a
// token that the model can draw can be sent back.
absl::Status AdmissionControl::Check(const GenerateRequest& request) const {
  if (info_.embedding_size > 0) {
    return absl::InvalidArgumentError(StrCat(
        "model is \"", info_.model_name,
        "\", which does not support the Completions API nor the Chat Completions API, but makes "
        "embeddings"));
  }
  MILLRACE_RETURN_IF_ERROR(ValidateRequest(request, limits_.vocab_size));
  if (const auto* text = std::get_if<std::string>(&request.prompt)) {
    MILLRACE_RETURN_IF_ERROR(text_.CheckLength(text->size(), limits_.max_model_len));
  }
  return CheckPromptBytes("prompt", request.prompt);
}

absl::Status AdmissionControl::Check(const EmbedRequest& request) const {
  if (info_.embedding_size == 0) {
    return absl::InvalidArgumentError(
        StrCat("model is \"", info_.model_name,
               "\", which does not support the Embeddings API, but generates"));
  }
  if (request.inputs.empty()) return absl::InvalidArgumentError(StrCat(request.field, " is empty"));
  const int32_t most = request.truncate_prompt_tokens.value_or(-1);
  const int32_t least = text_.tokenizer().text_frame().size() + 1;
  if (most != -1 && (most < least || most > info_.max_model_len)) {
    return absl::InvalidArgumentError(StrCat("truncate_prompt_tokens is ", most,
                                             "; allowed: -1, and ", least, " to ",
                                             info_.max_model_len));
  }
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    const std::string name = request.Name(i);
    MILLRACE_RETURN_IF_ERROR(ValidatePrompt(name, request.inputs[i], limits_.vocab_size));
    MILLRACE_RETURN_IF_ERROR(CheckPromptBytes(name, request.inputs[i]));
  }
  return absl::OkStatus();
}

absl::Status AdmissionControl::CheckTakesWork() const {
  if (loop_.failed()) {
    return WithRetryAfter(absl::UnavailableError("the device has failed"), absl::Seconds(1));
  }
  if (!draining_) return absl::OkStatus();
  return WithRetryAfter(absl::UnavailableError("the server is draining"), absl::Seconds(1));
}

// Sequences that fit the batch do not wait in the sense of --max-waiting, even while the next step
// is yet to be planned.
int64_t AdmissionControl::most_alive() const {
  return int64_t{options_.max_waiting} + limits_.max_num_seqs;
}

absl::Status AdmissionControl::CheckCapacity(int64_t num_alive) const {
  if (num_alive <= most_alive()) return absl::OkStatus();
  return QueueFull(StrCat(options_.max_waiting, " are waiting, the most allowed"));
}

// ---- In and out ----

absl::Status AdmissionControl::Enter(const Choices& choices, const absl::Status& checked) {
  int64_t num_alive = 0;  // with these
  {
    std::lock_guard lock(mutex_);
    requests_.insert(choices.begin(), choices.end());
    num_alive = num_alive_ += static_cast<int64_t>(choices.size());
  }
  in_text_ += static_cast<int32_t>(choices.size());
  MILLRACE_RETURN_IF_ERROR(CheckTakesWork());
  MILLRACE_RETURN_IF_ERROR(checked);
  const GenerateRequest& request = choices.front()->request;
  if (request.n > most_alive()) {
    return absl::InvalidArgumentError(
        StrCat(request.mean_logprob ? "best_of" : "n", " is ", request.n, "; allowed: 1 to ",
               most_alive(), ", as many as run (--max-num-seqs) and wait (--max-waiting)"));
  }
  return CheckCapacity(num_alive);
}

absl::Status AdmissionControl::Enter(const std::shared_ptr<EmbeddingBatch>& batch,
                                     const absl::Status& checked) {
  int64_t num_alive = 0;  // with this one
  size_t others = 0;      // bytes
  {
    std::lock_guard lock(mutex_);
    others = std::exchange(batch_bytes_, batch_bytes_ + batch->bytes);
    batches_.insert(batch);
    num_alive = ++num_alive_;
  }
  in_text_ += static_cast<int32_t>(batch->request.inputs.size());
  MILLRACE_RETURN_IF_ERROR(CheckTakesWork());
  MILLRACE_RETURN_IF_ERROR(checked);
  MILLRACE_RETURN_IF_ERROR(CheckCapacity(num_alive));
  if (others > 0 && others + batch->bytes > options_.max_embedding_bytes) {
    return QueueFull(StrCat("embeddings of ", others, " bytes are alive, and these have ",
                            batch->bytes, "; allowed: ", options_.max_embedding_bytes));
  }
  return absl::OkStatus();
}

void AdmissionControl::Leave(const std::shared_ptr<LiveRequest>& request) {
  std::lock_guard lock(mutex_);
  requests_.erase(request);
  if (--num_alive_ == 0) idle_.notify_all();
}

void AdmissionControl::Leave(const std::shared_ptr<EmbeddingBatch>& batch) {
  std::lock_guard lock(mutex_);
  batches_.erase(batch);
  batch_bytes_ -= batch->bytes;
  if (--num_alive_ == 0) idle_.notify_all();
}

// Wakes the engine thread, which publishes the number of those that wait.
void AdmissionControl::LeaveText(size_t count) {
  in_text_ -= static_cast<int32_t>(count);
  loop_.Wake();
}

bool AdmissionControl::TakeInputPlace() {
  std::lock_guard lock(mutex_);
  if (num_alive_ >= most_alive() / 2) return false;
  ++num_alive_;
  return true;
}

void AdmissionControl::ReturnInputPlace() {
  std::lock_guard lock(mutex_);
  --num_alive_;
}

// ---- What is alive ----

int32_t AdmissionControl::num_not_running() const {
  const LoopGauges& gauges = loop_.gauges();
  return in_text_ + gauges.in_inbox + gauges.waiting;
}

void AdmissionControl::CountRefusal(const absl::Status& why) {
  if (why.code() == absl::StatusCode::kResourceExhausted) {
    metrics_.OnReject(Rejection::kQueueFull);
  } else if (why.code() == absl::StatusCode::kUnavailable) {
    metrics_.OnReject(Rejection::kUnavailable);
  } else {
    metrics_.OnReject(Rejection::kInvalid);
  }
}

bool AdmissionControl::WaitIdle(SteadyTime deadline) {
  std::unique_lock lock(mutex_);
  return idle_.wait_until(lock, deadline, [this] { return num_alive_ == 0; });
}

std::vector<std::shared_ptr<LiveRequest>> AdmissionControl::requests() const {
  std::lock_guard lock(mutex_);
  return {requests_.begin(), requests_.end()};
}

std::vector<std::shared_ptr<EmbeddingBatch>> AdmissionControl::batches() const {
  std::lock_guard lock(mutex_);
  return {batches_.begin(), batches_.end()};
}

}  // namespace millrace
