// State of one choice of a request, or one input of a batch, from admission to its last event, and
// which of the text pool, the engine thread and an output shard may touch what.
#ifndef MILLRACE_ENGINE_LIVE_REQUEST_H_
#define MILLRACE_ENGINE_LIVE_REQUEST_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "engine/answer/answer_text.h"
#include "engine/answer/prediction_count.h"
#include "engine/answer/response_buffer.h"
#include "engine/constraints/guided_answer.h"
#include "engine/constraints/thinking_budget.h"
#include "engine/constraints/token_bounds.h"
#include "engine/request/request.h"
#include "scheduler/token_event.h"

namespace millrace {

struct EmbeddingBatch;

// Says whether the text work of a request is still wanted. Shared by its choices.
struct TextWork {
  explicit TextWork(uint32_t choices) : wanted(choices) {}
  std::atomic<uint32_t> wanted;         // choices that were not cancelled
  std::atomic<bool> cancelled = false;  // none is wanted
};

// Passed from thread to thread, one after another, by queues: text pool, engine thread, and from
// the first token on an output shard beside the engine thread. What has no lock of its own is
// written before it is passed on, and only read after.
struct LiveRequest {
  LiveRequest(const Clock& clock, GenerateRequest generate, std::function<void()> ready)
      : request(std::move(generate)), arrival(clock.Now()), buffer(clock, std::move(ready)) {}

  GenerateRequest request;
  const SteadyTime arrival;
  std::optional<SteadyTime> deadline;
  uint64_t key = 0;  // names the request between the threads of its engine
  uint32_t choice = 0;
  std::shared_ptr<EmbeddingBatch> batch;  // an input's: whom it tells, in the place of `buffer`
  size_t input = 0;                       // which one it is
  // Set once the prompt's tokens are counted in the metrics. Shared by the request's choices;
  // the first to get a token sets it.
  std::shared_ptr<std::atomic<bool>> prompt_counted;

  std::shared_ptr<TextWork> text_work;  // null: an input of a batch

  // Shared by the request's choices. Null: an input of a batch, which is evicted as a whole.
  std::shared_ptr<std::atomic<OutputState>> output;
  // Guarded by AdmissionControl's lock.
  bool entered_tenant = false;  // it is counted with its tenant
  bool evicted = false;

  // Written by the engine thread, before the end: its deadline could not be met.
  bool refused = false;

  // Written by the text pool, from then on the output shard's.
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of these, when the first token came
  std::vector<Token> prompt;  // if it is to be echoed
  std::optional<AnswerText> answer;
  std::optional<PredictionCount> prediction;  // if the request has one
  std::optional<SteadyTime> last_token;
  bool echoed = false;
  bool lost_output = false;  // an event did not fit the buffer: none may follow but the last

  // Written by the text pool, from then on the mask workers': follow an answer with a grammar, or
  // whose reasoning or tokens are bounded.
  std::optional<GuidedAnswer> guided;
  bool jumps = false;  // its forced tokens may be handed out at once: nothing is computed of each
  std::optional<ThinkingBudget> thinking_budget;
  std::optional<TokenBounds> token_bounds;
  Duration mask_time{};  // that the last mask took to make
  bool masked() const {
    return guided.has_value() || thinking_budget.has_value() || token_bounds.has_value();
  }

  ResponseBuffer buffer;  // any thread's

  // Returns the end of a request that never became a sequence.
  SequenceEnd UnscheduledEnd(EndReason reason, absl::Status status, SteadyTime now) const {
    return {.reason = reason,
            .status = std::move(status),
            .prompt_tokens = prompt_tokens,
            .arrival = arrival,
            .ended = now};
  }

  // Returns whether output may be sent, and that from now on the request is not evicted.
  bool MaySend() {
    OutputState none = OutputState::kNone;
    return output->compare_exchange_strong(none, OutputState::kSent) || none == OutputState::kSent;
  }
  // Returns whether nothing was sent, and that from now on nothing may be.
  bool TryEvict() {
    OutputState none = OutputState::kNone;
    return output->compare_exchange_strong(none, OutputState::kEvicted) ||
           none == OutputState::kEvicted;
  }

  // Sets the reason why the request ends early, unless one is set. Returns whether it did.
  bool SetCancelled(CancelReason reason) {
    std::lock_guard lock(mutex_);
    if (cancelled_.has_value()) return false;
    cancelled_ = reason;
    if (text_work != nullptr && --text_work->wanted == 0) text_work->cancelled = true;
    return true;
  }
  std::optional<CancelReason> cancelled() const {
    std::lock_guard lock(mutex_);
    if (!cancelled_ && output != nullptr && *output == OutputState::kEvicted) {
      return CancelReason::kEvicted;  // it is about to be set
    }
    return cancelled_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<CancelReason> cancelled_;  // guarded by mutex_
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_LIVE_REQUEST_H_
