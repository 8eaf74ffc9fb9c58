#include "engine/embedder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/prepare.h"
#include "engine/request/tenant.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kEngine);

// Copies the first numbers of an embedding. Fewer than all are an embedding of their own, which has
// the length of 1 if all embeddings do.
void CopyEmbedding(absl::Span<const float> from, bool normalized, absl::Span<float> to) {
  std::copy_n(from.begin(), to.size(), to.begin());
  if (!normalized || to.size() == from.size()) return;
  double squares = 0;
  for (const float value : to) squares += double{value} * value;
  const double length = std::max(std::sqrt(squares), 1e-12);
  for (float& value : to) value = static_cast<float>(value / length);
}

}  // namespace

// ---- On the caller's thread ----

std::function<void()> Embedder::Embed(EmbedRequest request,
                                      std::function<void(absl::StatusOr<Embeddings>)> done) {
  absl::Status checked = parts_.admission.Check(request);
  if (checked.ok() && request.tenant != nullptr) {
    checked = request.tenant->CheckPriority(&request.priority);
  }
  const auto batch =
      std::make_shared<EmbeddingBatch>(parts_.clock, std::move(request), std::move(done));
  batch->deadline = parts_.ToSteady(batch->request.deadline);
  size_t bytes = 0;
  for (const Prompt& input : batch->request.inputs) bytes += PromptBytes(input);
  const std::string* last = nullptr;
  for (const auto& text : batch->request.first_texts) {
    bytes += text.get() == last ? 0 : text->size();
    last = text.get();
  }
  // An input's tokens are as many as its text has bytes, at most.
  batch->bytes = sizeof(Token) * bytes +
                 batch->request.inputs.size() * (sizeof(Prompt) + sizeof(std::vector<Token>) +
                                                 parts_.info.embedding_size * sizeof(float));
  std::vector<Batch> evicted;
  absl::Status status = parts_.admission.Enter(batch, checked, &evicted);
  for (const Batch& other : evicted) Cancel(*other, CancelReason::kEvicted);
  if (status.ok()) {
    const std::shared_ptr<const Tenant>& tenant = batch->request.tenant;
    status = parts_.pool->Submit(
        ShareOf(tenant.get()), bytes, [this, batch] { Prepare(batch); },
        [batch](SteadyTime now) {
          const std::lock_guard lock(batch->mutex);
          return now >= batch->deadline.value_or(SteadyTime::max()) || !batch->status.ok();
        });
    if (!status.ok() && tenant != nullptr) tenant->GiveBack();
  }
  if (status.ok()) return [this, batch] { Cancel(*batch, CancelReason::kClientGone); };
  parts_.admission.CountRefusal(status);
  {
    std::lock_guard lock(batch->mutex);
    batch->status = std::move(status);
  }
  End(batch);
  return [] {};
}

// ---- On the text pool, or on the watchdog's thread if it is over before it is read ----

void Embedder::Prepare(const Batch& batch) {
  absl::Status refused = EncodeInputs(*batch);
  {
    std::lock_guard lock(batch->mutex);
    if (batch->cancelled.has_value()) {
      parts_.metrics.OnFinish(FinishReason::kCancelled,
                              {.reason = EndReason::kCancelled, .arrival = batch->arrival});
      parts_.metrics.OnCancel(*batch->cancelled);
    } else if (!refused.ok()) {
      parts_.admission.CountRefusal(refused);
      batch->status = std::move(refused);
    } else {
      return HandOver(batch);
    }
  }
  End(batch);
}

// Encodes all inputs before the first one runs, so that no mistake of the client's ends a batch
// halfway.
absl::Status Embedder::EncodeInputs(EmbeddingBatch& batch) {
  std::vector<std::vector<Token>> prompts;
  std::vector<std::optional<int32_t>> second_types(batch.request.inputs.size());
  FirstText first;
  for (size_t i = 0; i < batch.request.inputs.size(); ++i) {
    if (batch.deadline.has_value() && parts_.clock.Now() >= *batch.deadline) {
      Cancel(batch, CancelReason::kDeadline);
    }
    {
      std::lock_guard lock(batch.mutex);
      MILLRACE_RETURN_IF_ERROR(batch.status);
    }
    if (batch.request.first_texts.empty()) {
      MILLRACE_ASSIGN_OR_RETURN(prompts.emplace_back(), EncodeInput(batch, i));
    } else {
      MILLRACE_ASSIGN_OR_RETURN(PairTokens pair, EncodePair(batch, i, first));
      prompts.push_back(std::move(pair.tokens));
      second_types[i] = pair.second_type;
    }
    // A text may be long, and is not needed again.
    batch.request.inputs[i].emplace<std::string>();
  }
  std::vector<BlockHashes> hashes;
  for (const std::vector<Token>& prompt : prompts) {
    hashes.push_back(HashesOf(prompt, batch.request.tenant.get(), parts_.defaults));
  }
  std::lock_guard lock(batch.mutex);
  batch.prompts = std::move(prompts);
  batch.hashes = std::move(hashes);
  batch.second_types = std::move(second_types);
  batch.embeddings.size = batch.request.dimensions.value_or(parts_.info.embedding_size);
  batch.embeddings.values.resize(batch.prompts.size() * batch.embeddings.size);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Token>> Embedder::EncodeInput(const EmbeddingBatch& batch,
                                                         size_t input) const {
  const StepLimits& limits = parts_.defaults.limits;
  const Prompt& prompt = batch.request.inputs[input];
  const std::string name = batch.request.Name(input);
  const std::string& before = parts_.info.embedding.prompt;
  const auto* const text = std::get_if<std::string>(&prompt);
  const bool prompted = text != nullptr && !before.empty();
  // An encoder's token may stand for a text of any length: an unknown word is one token.
  absl::StatusOr<std::vector<Token>> tokens =
      parts_.text->PromptTokens({.prompt = prompted ? Prompt(before + *text) : prompt},
                                Tokenizer::kMaxTextBytes, SteadyTime::max(), &batch.cancelled_text);
  if (!tokens.ok()) return Annotate(tokens.status(), name);
  if (const auto most = batch.request.truncate_prompt_tokens) {
    parts_.text->Truncate(prompt, *most == -1 ? limits.max_model_len : *most, &*tokens);
  }
  MILLRACE_RETURN_IF_ERROR(CheckTokens(name, *tokens, batch, input));
  return tokens;
}

absl::StatusOr<PairTokens> Embedder::EncodePair(const EmbeddingBatch& batch, size_t input,
                                                FirstText& first) const {
  const EmbedRequest& request = batch.request;
  const Tokenizer& tokenizer = parts_.text->tokenizer();
  const std::string name = request.Name(input);
  const EncodeOptions options = {
      .add_special = false, .parse_special = true, .cancelled = &batch.cancelled_text};
  if (request.first_texts[input] != first.text) {
    first.text = request.first_texts[input];
    absl::StatusOr<std::vector<Token>> tokens = tokenizer.Encode(*first.text, options);
    if (!tokens.ok()) return Annotate(tokens.status(), StrCat("the text before ", name));
    first.tokens = *std::move(tokens);
  }
  const absl::StatusOr<std::vector<Token>> second =
      tokenizer.Encode(std::get<std::string>(request.inputs[input]), options);
  if (!second.ok()) return Annotate(second.status(), name);
  std::optional<int32_t> most = request.truncate_prompt_tokens;
  if (most == -1) most = parts_.defaults.limits.max_model_len;
  const auto size = static_cast<int64_t>(first.tokens.size() + second->size());
  if (!most.has_value() && size > parts_.defaults.limits.max_model_len) {
    return absl::OutOfRangeError(
        StrCat(name, " has ", size, " tokens with the text before it; allowed: at most ",
               parts_.defaults.limits.max_model_len, ", or truncate_prompt_tokens"));
  }
  PairTokens pair = JoinPair(tokenizer.pair_frame(), first.tokens, *second, most);
  MILLRACE_RETURN_IF_ERROR(CheckTokens(name, pair.tokens, batch, input));
  return pair;
}

absl::Status Embedder::CheckTokens(const std::string& name, const std::vector<Token>& tokens,
                                   const EmbeddingBatch& batch, size_t input) const {
  const StepLimits& limits = parts_.defaults.limits;
  const int64_t capacity = int64_t{limits.context_blocks()} * limits.block_size();
  const int64_t longest = std::min<int64_t>(limits.max_model_len, capacity);
  const auto size = static_cast<int64_t>(tokens.size());
  if (size == 0) return absl::InvalidArgumentError(StrCat(name, " has no tokens"));
  if (size > longest) {
    return absl::OutOfRangeError(StrCat(name, " has ", size, " tokens; allowed: at most ", longest,
                                        ", or truncate_prompt_tokens"));
  }
  MILLRACE_RETURN_IF_ERROR(CheckKnown(name, tokens, limits.vocab_size));
  if (parts_.options.log_prompts) parts_.LogPrompt(StrCat(batch.request.id, "-", input), tokens);
  return absl::OkStatus();
}

// ---- To and from the engine thread, under the batch's lock ----

// Keeps at least one input of the batch running while some are left, so that it always goes on.
void Embedder::HandOver(const Batch& batch) {
  std::vector<Admission> admissions;
  while (batch->next < batch->prompts.size() &&
         batch->running.size() < EmbeddingBatch::kMostAtOnce &&
         (batch->running.empty() || parts_.admission.TakeInputPlace())) {
    const auto input = std::make_shared<LiveRequest>(parts_.clock, GenerateRequest(), nullptr);
    input->key = parts_.next_key.fetch_add(1);
    input->batch = batch;
    input->input = batch->next++;
    input->deadline = batch->deadline;
    batch->running.insert(input);
    SequenceRequest sequence;
    sequence.id = input->key;
    sequence.prompt = std::move(batch->prompts[input->input]);
    sequence.prompt_hashes = std::move(batch->hashes[input->input]);
    sequence.second_type = batch->second_types[input->input];
    sequence.sampling = std::make_shared<const SamplingParams>();
    sequence.priority = batch->request.priority;
    sequence.tenant = ShareOf(batch->request.tenant.get());
    sequence.arrival = batch->arrival;
    admissions.push_back({input, std::move(sequence)});
  }
  const size_t num_inputs = admissions.size();
  if (num_inputs == 0) return;
  parts_.loop.Admit(std::move(admissions));
  parts_.admission.LeaveText(num_inputs);
}

void Embedder::CancelRunning(const EmbeddingBatch& batch, CancelReason reason) {
  for (const std::shared_ptr<LiveRequest>& input : batch.running) parts_.Cancel(input, reason);
}

// ---- On any thread ----

void Embedder::Cancel(EmbeddingBatch& batch, CancelReason reason) {
  reason = parts_.ReasonBy(batch.deadline, reason);
  std::lock_guard lock(batch.mutex);
  if (batch.ended || !batch.status.ok()) return;
  batch.cancelled = reason;
  batch.status = CancelStatus(reason);
  batch.cancelled_text = true;
  CancelRunning(batch, reason);
}

void Embedder::OnEmbedded(const std::shared_ptr<LiveRequest>& request,
                          absl::Span<const float> embedding, const SequenceEnd& end) {
  if (request->refused) {
    parts_.metrics.OnReject(Rejection::kDeadline);
  } else if (end.status.ok()) {
    parts_.metrics.OnFinish(FinishReason::kStop, end);
    parts_.metrics.OnEmbedding(end.prompt_tokens);
  } else if (const auto reason = request->cancelled()) {
    parts_.metrics.OnFinish(FinishReason::kCancelled, end);
    parts_.metrics.OnCancel(*reason);
  } else {
    parts_.metrics.OnFinish(FinishReason::kError, end);
  }
  const Batch batch = request->batch;
  {
    std::lock_guard lock(batch->mutex);
    batch->running.erase(request);
    if (!batch->running.empty()) parts_.admission.ReturnInputPlace();
    if (end.status.ok()) {
      const auto size = static_cast<size_t>(batch->embeddings.size);
      CopyEmbedding(embedding, parts_.info.embedding.normalized,
                    absl::MakeSpan(batch->embeddings.values).subspan(request->input * size, size));
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

// Ends a batch that has nothing running. Called once.
void Embedder::End(const Batch& batch) {
  {
    std::lock_guard lock(batch->mutex);
    batch->ended = true;
  }
  parts_.admission.LeaveText(batch->request.inputs.size() - batch->next);
  const size_t bytes = batch->embeddings.values.size() * sizeof(float);
  const auto answer = [this, batch] {
    const absl::Status& status = batch->status;
    kLog.ForRequest(batch->request.id)
        .Info(
            status.ok() ? "embedded" : status.ToString(), "; inputs=", batch->request.inputs.size(),
            " prompt_tokens=", batch->embeddings.prompt_tokens,
            " took=", absl::FormatDuration(absl::FromChrono(parts_.clock.Now() - batch->arrival)));
    parts_.admission.Leave(batch);
    if (parts_.options.spans != nullptr) {
      parts_.options.spans->OnSpan({.request_id = batch->request.id,
                                    .model = parts_.info.model_name,
                                    .parent = batch->request.trace,
                                    .status = status,
                                    .arrival = batch->arrival,
                                    .ended = parts_.clock.Now(),
                                    .prompt_tokens = batch->embeddings.prompt_tokens});
    }
    if (!status.ok()) return batch->done(status);
    batch->done(std::move(batch->embeddings));
  };
  // Writing many embeddings takes the endpoint some time; it is the text pool's, not the shard's.
  if (!batch->status.ok() ||
      !parts_.pool->Submit(ShareOf(batch->request.tenant.get()), bytes, answer).ok())
    answer();
}

}  // namespace millrace
