#include "engine/admission_control.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <variant>

#include "base/status.h"
#include "base/strings.h"
#include "engine/request/tenant.h"
#include "text/tokenizer/text_pair.h"

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
        "embeddings or scores"));
  }
  MILLRACE_RETURN_IF_ERROR(ValidateRequest(request, limits_.vocab_size));
  if (const auto* text = std::get_if<std::string>(&request.prompt)) {
    MILLRACE_RETURN_IF_ERROR(text_.CheckLength(text->size(), limits_.max_model_len));
  }
  for (const auto& [field, bytes] : {std::pair("suffix", request.suffix.size()),
                                     std::pair("prediction", request.prediction.size())}) {
    if (bytes <= Tokenizer::kMaxTextBytes) continue;
    return absl::InvalidArgumentError(
        StrCat(field, " has ", bytes, " bytes; allowed: at most ", Tokenizer::kMaxTextBytes));
  }
  if (request.grammar.has_value()) {
    MILLRACE_RETURN_IF_ERROR(
        Annotate(Grammar::CheckBytes(*request.grammar), request.grammar_field));
  }
  return CheckPromptBytes("prompt", request.prompt);
}

// Embeddings can be cut where the model was trained for that.
absl::Status AdmissionControl::CheckDimensions(int32_t dimensions) const {
  const int32_t size = info_.embedding_size;
  if (dimensions == size) return absl::OkStatus();
  const EmbeddingTraits& traits = info_.embedding;
  const std::vector<int32_t>& sizes = traits.sizes;
  const bool fits = sizes.empty()
                        ? dimensions >= 1 && dimensions < size
                        : std::find(sizes.begin(), sizes.end(), dimensions) != sizes.end();
  if (traits.matryoshka && fits) return absl::OkStatus();
  const std::string said = StrCat("dimensions is ", dimensions, "; allowed: ");
  if (!traits.matryoshka) {
    return absl::InvalidArgumentError(StrCat(said, size, ", the size of the model's embeddings"));
  }
  if (sizes.empty()) return absl::InvalidArgumentError(StrCat(said, "1 to ", size));
  std::vector<std::string> names;
  for (const int32_t allowed : sizes) names.push_back(StrCat(allowed));
  return absl::InvalidArgumentError(StrCat(said, JoinList(names), " and ", size));
}

absl::Status AdmissionControl::Check(const EmbedRequest& request) const {
  if (info_.embedding_size == 0) {
    return absl::InvalidArgumentError(
        StrCat("model is \"", info_.model_name,
               "\", which does not support the Embeddings API, but generates"));
  }
  const bool pairs = !request.first_texts.empty();
  if (pairs != info_.score.has_value()) {
    return absl::InvalidArgumentError(
        StrCat("model is \"", info_.model_name, "\", which ",
               pairs ? "makes embeddings and does not score pairs"
                     : "does not support the Embeddings API, but scores pairs of texts"));
  }
  if (request.inputs.empty()) return absl::InvalidArgumentError(StrCat(request.field, " is empty"));
  if (request.dimensions.has_value()) {
    MILLRACE_RETURN_IF_ERROR(CheckDimensions(*request.dimensions));
  }
  const int32_t most = request.truncate_prompt_tokens.value_or(-1);
  const int32_t least = pairs ? FrameSize(text_.tokenizer().pair_frame()) + 2
                              : text_.tokenizer().text_frame().size() + 1;
  if (most != -1 && (most < least || most > info_.max_model_len)) {
    return absl::InvalidArgumentError(StrCat("truncate_prompt_tokens is ", most,
                                             "; allowed: -1, and ", least, " to ",
                                             info_.max_model_len));
  }
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    const std::string name = request.Name(i);
    MILLRACE_RETURN_IF_ERROR(ValidatePrompt(name, request.inputs[i], limits_.vocab_size));
    MILLRACE_RETURN_IF_ERROR(CheckPromptBytes(name, request.inputs[i]));
    if (pairs && !std::holds_alternative<std::string>(request.inputs[i])) {
      return absl::InvalidArgumentError(StrCat(name, " is a list of token ids; allowed: a text"));
    }
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

absl::Status AdmissionControl::QueueIsFull() const {
  return QueueFull(StrCat(options_.max_waiting, " are waiting, the most allowed"));
}

// ---- In and out ----

// Evicts what was sent nothing yet, latest first, from whoever holds most, until those alive fit,
// as long as that one holds more than `tenant` with its newcomer. Returns whether they fit. With
// mutex_ held.
bool AdmissionControl::MakeRoom(uint32_t tenant, Evicted& evicted) {
  const auto holds = [](const auto& entry) {
    return entry.second.holds_evictable() ? entry.second.alive : 0;
  };
  while (num_alive_ - num_evicting_ > most_alive()) {
    const auto most =
        std::max_element(holders_.begin(), holders_.end(),
                         [&](const auto& a, const auto& b) { return holds(a) < holds(b); });
    if (most->first == tenant || holds(*most) <= holders_[tenant].alive) return false;
    EvictOne(most->second, evicted);
  }
  return true;
}

// Evicts one request, or finds that something was sent of each. A model has requests or batches.
void AdmissionControl::EvictOne(Holder& holder, Evicted& evicted) {
  if (!holder.batches.empty()) {
    const auto latest = std::prev(holder.batches.end());
    latest->second->evicted = true;
    ++num_evicting_;
    --holder.alive;
    evicted.batches.push_back(std::move(latest->second));
    holder.batches.erase(latest);
    return;
  }
  while (!holder.evictable.empty()) {
    const Choices choices = std::move(std::prev(holder.evictable.end())->second);
    holder.evictable.erase(std::prev(holder.evictable.end()));
    if (!choices.front()->TryEvict()) continue;
    for (const std::shared_ptr<LiveRequest>& choice : choices) {
      choice->evicted = true;
      ++num_evicting_;
      --holder.alive;
      evicted.choices.push_back(choice);
    }
    return;
  }
}

absl::Status AdmissionControl::Enter(const Choices& choices, const absl::Status& checked) {
  const auto size = static_cast<int64_t>(choices.size());
  const std::shared_ptr<const Tenant>& tenant = choices.front()->request.tenant;
  const uint32_t id = TenantId(tenant);
  {
    std::lock_guard lock(mutex_);
    requests_.insert(choices.begin(), choices.end());
    num_alive_ += size;
    holders_[id].alive += size;
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
  if (tenant != nullptr) {
    MILLRACE_RETURN_IF_ERROR(tenant->Enter(size, choices.front()->arrival));
  }
  Evicted evicted;
  bool fits = false;
  {
    std::lock_guard lock(mutex_);
    for (const std::shared_ptr<LiveRequest>& choice : choices) {
      choice->entered_tenant = tenant != nullptr;
    }
    fits = MakeRoom(id, evicted);
    if (fits) holders_[id].evictable[choices.front()->key] = choices;
  }
  for (const std::shared_ptr<LiveRequest>& choice : evicted.choices) {
    if (!choice->SetCancelled(CancelReason::kEvicted)) continue;
    loop_.Cancel(choice->key, CancelStatus(CancelReason::kEvicted));
  }
  if (fits) return absl::OkStatus();
  if (tenant != nullptr) tenant->GiveBack();
  return QueueIsFull();
}

absl::Status AdmissionControl::Enter(const std::shared_ptr<EmbeddingBatch>& batch,
                                     const absl::Status& checked,
                                     std::vector<std::shared_ptr<EmbeddingBatch>>* evicted) {
  const std::shared_ptr<const Tenant>& tenant = batch->request.tenant;
  const uint32_t id = TenantId(tenant);
  size_t mine = 0;    // bytes of the tenant's batches
  size_t others = 0;  // and of the others'
  {
    std::lock_guard lock(mutex_);
    for (const std::shared_ptr<EmbeddingBatch>& other : batches_) {
      (TenantId(other->request.tenant) == id ? mine : others) += other->bytes;
    }
    batches_.insert(batch);
    batch->number = next_batch_++;
    ++num_alive_;
    ++holders_[id].alive;
  }
  in_text_ += static_cast<int32_t>(batch->request.inputs.size());
  MILLRACE_RETURN_IF_ERROR(CheckTakesWork());
  MILLRACE_RETURN_IF_ERROR(checked);
  // A tenant with more than one batch leaves others half of what it finds, so that another one
  // still finds room. Its first batch may take all of that.
  const size_t left = options_.max_embedding_bytes - std::min(others, options_.max_embedding_bytes);
  const size_t most = tenant != nullptr && mine > 0 ? left / 2 : left;
  if (mine + others > 0 && mine + batch->bytes > most) {
    return QueueFull(StrCat("embeddings of ", mine, " bytes are alive, and these have ",
                            batch->bytes, "; allowed: ", most));
  }
  if (tenant != nullptr) MILLRACE_RETURN_IF_ERROR(tenant->Enter(1, batch->arrival));
  Evicted room;
  bool fits = false;
  {
    std::lock_guard lock(mutex_);
    batch->entered_tenant = tenant != nullptr;
    fits = MakeRoom(id, room);
    if (fits) holders_[id].batches[batch->number] = batch;
  }
  *evicted = std::move(room.batches);
  if (fits) return absl::OkStatus();
  if (tenant != nullptr) tenant->GiveBack();
  return QueueIsFull();
}

void AdmissionControl::LeaveHolder(uint32_t id, int64_t count) {
  const auto holder = holders_.find(id);
  if (holder == holders_.end()) return;
  holder->second.alive -= count;
  if (holder->second.alive == 0 && !holder->second.holds_evictable()) holders_.erase(holder);
}

void AdmissionControl::Leave(const std::shared_ptr<LiveRequest>& request, int64_t prompt_tokens,
                             int64_t generation_tokens) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<const Tenant>& tenant = request->request.tenant;
  const uint32_t id = TenantId(tenant);
  if (request->entered_tenant) {
    tenant->Leave(prompt_tokens, generation_tokens, options_.clock->Now());
  }
  // A request whose first choice has ended has sent something, or nothing is left to be evicted.
  if (const auto holder = holders_.find(id); holder != holders_.end()) {
    holder->second.evictable.erase(request->key - request->choice);
  }
  num_evicting_ -= request->evicted ? 1 : 0;
  LeaveHolder(id, request->evicted ? 0 : 1);
  requests_.erase(request);
  if (--num_alive_ == 0) idle_.notify_all();
}

void AdmissionControl::Leave(const std::shared_ptr<EmbeddingBatch>& batch) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<const Tenant>& tenant = batch->request.tenant;
  if (batch->entered_tenant) {
    tenant->Leave(batch->embeddings.prompt_tokens, 0, options_.clock->Now());
  }
  const uint32_t id = TenantId(tenant);
  if (const auto holder = holders_.find(id); holder != holders_.end()) {
    holder->second.batches.erase(batch->number);
  }
  num_evicting_ -= batch->evicted ? 1 : 0;
  LeaveHolder(id, batch->evicted ? 0 : 1);
  batches_.erase(batch);
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
