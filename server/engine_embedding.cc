// The part of EngineImpl that makes embeddings: of batches, whose inputs become sequences.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "server/engine_impl.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kEngine);

}  // namespace

// ---- At the door ----

absl::Status EngineImpl::CheckFields(const EmbedRequest& request) const {
  if (info_.embedding_size == 0) {
    return absl::InvalidArgumentError(
        StrCat("model is \"", info_.model_name,
               "\", which does not support the Embeddings API, but generates"));
  }
  if (request.inputs.empty()) return absl::InvalidArgumentError(StrCat(request.field, " is empty"));
  const int32_t asked = request.truncate_prompt_tokens.value_or(-1);
  const int32_t least = text_->tokenizer().text_frame().size() + 1;
  if (asked != -1 && (asked < least || asked > info_.max_model_len)) {
    return absl::InvalidArgumentError(StrCat("truncate_prompt_tokens is ", asked,
                                             "; allowed: -1, and ", least, " to ",
                                             info_.max_model_len));
  }
  const int32_t vocab_size = std::min(text_->tokenizer().vocab_size(), defaults_.limits.vocab_size);
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    const std::string name = request.Name(i);
    MILLRACE_RETURN_IF_ERROR(ValidatePrompt(name, request.inputs[i], vocab_size));
    MILLRACE_RETURN_IF_ERROR(CheckPromptBytes(name, request.inputs[i]));
  }
  return absl::OkStatus();
}

std::function<void()> EngineImpl::Embed(EmbedRequest request,
                                        std::function<void(absl::StatusOr<Embeddings>)> done) {
  const absl::Status fields = CheckFields(request);
  const auto batch = std::make_shared<EmbeddingBatch>(clock_, std::move(request), std::move(done));
  batch->deadline = ToSteady(batch->request.deadline);
  size_t bytes = 0;
  for (const Prompt& input : batch->request.inputs) bytes += PromptBytes(input);
  // An input's tokens are as many as its text has bytes, at most.
  batch->bytes = sizeof(Token) * bytes +
                 batch->request.inputs.size() * (sizeof(Prompt) + sizeof(std::vector<Token>) +
                                                 info_.embedding_size * sizeof(float));
  int64_t num_alive = 0;  // with this one
  size_t others = 0;      // bytes
  {
    std::lock_guard lock(live_mutex_);
    others = std::exchange(batch_bytes_, batch_bytes_ + batch->bytes);
    batches_.insert(batch);
    num_alive = ++num_alive_;
  }
  in_text_ += static_cast<int32_t>(batch->request.inputs.size());
  absl::Status status = CheckTakesWork();
  if (status.ok()) status = fields;
  if (status.ok()) status = CheckRoom(num_alive);
  if (status.ok() && others > 0 && others + batch->bytes > options_.max_embedding_bytes) {
    status = QueueFull(StrCat("embeddings of ", others, " bytes are alive, and these have ",
                              batch->bytes, "; allowed: ", options_.max_embedding_bytes));
  }
  if (status.ok()) status = pool_->Submit(bytes, [this, batch] { Prepare(batch); });
  if (status.ok()) return [this, batch] { Cancel(*batch, CancelReason::kClientGone); };
  CountRefusal(status);
  {
    std::lock_guard lock(batch->mutex);
    batch->status = std::move(status);
  }
  End(batch);
  return [] {};
}

// ---- On the text pool ----

void EngineImpl::Prepare(const Batch& batch) {
  absl::Status refused = EncodeInputs(*batch);
  {
    std::lock_guard lock(batch->mutex);
    if (batch->cancelled.has_value()) {
      metrics_.OnFinish(FinishReason::kCancelled,
                        {.reason = EndReason::kCancelled, .arrival = batch->arrival});
      metrics_.OnCancel(*batch->cancelled);
    } else if (!refused.ok()) {
      CountRefusal(refused);
      batch->status = std::move(refused);
    } else {
      return HandOver(batch);
    }
  }
  End(batch);
}

// The tokens of all inputs, before the first one runs: nothing that a client could have done better
// ends a batch halfway.
absl::Status EngineImpl::EncodeInputs(EmbeddingBatch& batch) {
  std::vector<std::vector<Token>> prompts;
  for (size_t i = 0; i < batch.request.inputs.size(); ++i) {
    if (batch.deadline.has_value() && clock_.Now() >= *batch.deadline) {
      Cancel(batch, CancelReason::kDeadline);
    }
    {
      std::lock_guard lock(batch.mutex);
      MILLRACE_RETURN_IF_ERROR(batch.status);
    }
    MILLRACE_ASSIGN_OR_RETURN(prompts.emplace_back(), EncodeInput(batch, i));
    // A text may be long, and nobody needs it again.
    batch.request.inputs[i].emplace<std::string>();
  }
  std::lock_guard lock(batch.mutex);
  batch.prompts = std::move(prompts);
  batch.embeddings.size = info_.embedding_size;
  batch.embeddings.values.resize(batch.prompts.size() * info_.embedding_size);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Token>> EngineImpl::EncodeInput(const EmbeddingBatch& batch,
                                                           size_t input) const {
  const StepLimits& limits = defaults_.limits;
  const Prompt& prompt = batch.request.inputs[input];
  const std::string name = batch.request.Name(input);
  // What an encoder's token stands for has no longest: a word that it does not know is one.
  absl::StatusOr<std::vector<Token>> tokens =
      text_->PromptTokens({.prompt = prompt}, Tokenizer::kMaxTextBytes, SteadyTime::max());
  if (!tokens.ok()) return Annotate(tokens.status(), name);
  if (const auto most = batch.request.truncate_prompt_tokens) {
    text_->Truncate(prompt, *most == -1 ? limits.max_model_len : *most, &*tokens);
  }
  const int64_t room = int64_t{limits.num_blocks} * limits.block_size;
  const int64_t longest = std::min<int64_t>(limits.max_model_len, room);
  const auto size = static_cast<int64_t>(tokens->size());
  if (size == 0) return absl::InvalidArgumentError(StrCat(name, " has no tokens"));
  if (size > longest) {
    return absl::OutOfRangeError(StrCat(name, " has ", size, " tokens; allowed: at most ", longest,
                                        ", or truncate_prompt_tokens"));
  }
  MILLRACE_RETURN_IF_ERROR(CheckKnown(name, *tokens, limits.vocab_size));
  if (options_.log_prompts) LogPrompt(StrCat(batch.request.id, "-", input), *tokens);
  return tokens;
}

// ---- Towards and from the engine thread, under the batch's lock ----

// Of a batch with inputs left one runs at least, so that it always goes on.
void EngineImpl::HandOver(const Batch& batch) {
  std::vector<Admission> admissions;
  while (batch->next < batch->prompts.size() &&
         batch->running.size() < EmbeddingBatch::kMostAtOnce &&
         (batch->running.empty() || TakeMorePlaces())) {
    const auto input = std::make_shared<LiveRequest>(clock_, GenerateRequest(), nullptr);
    input->key = next_key_.fetch_add(1);
    input->batch = batch;
    input->input = batch->next++;
    input->deadline = batch->deadline;
    batch->running.insert(input);
    SequenceRequest sequence;
    sequence.id = input->key;
    sequence.prompt = std::move(batch->prompts[input->input]);
    sequence.sampling = std::make_shared<const SamplingParams>();
    sequence.priority = batch->request.priority;
    sequence.arrival = batch->arrival;
    admissions.push_back({input, std::move(sequence)});
  }
  const auto num_inputs = static_cast<int32_t>(admissions.size());
  if (num_inputs > 0) loop_->Admit(std::move(admissions));
  in_text_ -= num_inputs;
}

// Half of the room is for requests that are yet to come.
bool EngineImpl::TakeMorePlaces() {
  std::lock_guard lock(live_mutex_);
  if (num_alive_ >= MostAlive() / 2) return false;
  ++num_alive_;
  return true;
}

void EngineImpl::CancelRunning(const EmbeddingBatch& batch, CancelReason reason) {
  for (const std::shared_ptr<LiveRequest>& input : batch.running) Cancel(input, reason);
}

// ---- From anywhere ----

void EngineImpl::Cancel(EmbeddingBatch& batch, CancelReason reason) {
  std::lock_guard lock(batch.mutex);
  if (batch.ended || !batch.status.ok()) return;
  batch.cancelled = reason;
  batch.status = CancelStatus(reason);
  CancelRunning(batch, reason);
}

void EngineImpl::OnEmbedded(const std::shared_ptr<LiveRequest>& request,
                            absl::Span<const float> embedding, const SequenceEnd& end) {
  if (end.status.ok()) {
    metrics_.OnFinish(FinishReason::kStop, end);
    metrics_.OnEmbedding(end.prompt_tokens);
  } else if (const auto reason = request->cancelled()) {
    metrics_.OnFinish(FinishReason::kCancelled, end);
    metrics_.OnCancel(*reason);
  } else {
    metrics_.OnFinish(FinishReason::kError, end);
  }
  const Batch batch = request->batch;
  {
    std::lock_guard lock(batch->mutex);
    batch->running.erase(request);
    if (!batch->running.empty()) {
      std::lock_guard alive_lock(live_mutex_);
      --num_alive_;
    }
    if (end.status.ok()) {
      std::ranges::copy(embedding,
                        batch->embeddings.values.begin() + request->input * embedding.size());
      batch->embeddings.prompt_tokens += end.prompt_tokens;
    } else if (batch->status.ok()) {
      const bool of_input = end.reason == EndReason::kFailed;
      batch->status =
          of_input ? Annotate(end.status, batch->request.Name(request->input)) : end.status;
      CancelRunning(*batch, CancelReason::kBatchFailed);
    }
    if (batch->status.ok()) HandOver(batch);
    if (!batch->running.empty()) return;
  }
  End(batch);
}

// Of a batch of which nothing runs, once.
void EngineImpl::End(const Batch& batch) {
  {
    std::lock_guard lock(batch->mutex);
    batch->ended = true;
  }
  in_text_ -= static_cast<int32_t>(batch->request.inputs.size() - batch->next);
  loop_->Wake();  // to say so in the metrics
  const size_t bytes = batch->embeddings.values.size() * sizeof(float);
  const auto answer = [this, batch] {
    const absl::Status& status = batch->status;
    kLog.ForRequest(batch->request.id)
        .Info(status.ok() ? "embedded" : status.ToString(),
              "; inputs=", batch->request.inputs.size(),
              " prompt_tokens=", batch->embeddings.prompt_tokens,
              " took=", absl::FormatDuration(absl::FromChrono(clock_.Now() - batch->arrival)));
    {
      // First: whoever has the answer finds room for another.
      std::lock_guard lock(live_mutex_);
      batches_.erase(batch);
      batch_bytes_ -= batch->bytes;
      if (--num_alive_ == 0) idle_.notify_all();
    }
    if (!status.ok()) return batch->done(status);
    batch->done(std::move(batch->embeddings));
  };
  // What a door makes of many embeddings takes its time, which is not the output shard's.
  if (!batch->status.ok() || !pool_->Submit(bytes, answer).ok()) answer();
}

}  // namespace millrace
