// The scheduler's output.
#ifndef MILLRACE_SCHEDULER_TOKEN_EVENT_H_
#define MILLRACE_SCHEDULER_TOKEN_EVENT_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "base/clock.h"
#include "plan/step_plan.h"
#include "scheduler/sequence_request.h"

namespace millrace {

enum class EndReason {
  kStopToken,  // SequenceEnd::stop_token
  kLength,     // max_tokens, or the model's length
  kComplete,   // Scheduler::Complete
  kCancelled,  // status is the canceller's
  kFailed,     // status is the executor's
};

struct SequenceEnd {
  EndReason reason;
  absl::Status status;  // not OK exactly for kCancelled and kFailed
  std::optional<Token> stop_token;

  int32_t prompt_tokens;
  int32_t cached_tokens;  // of the prompt's, found in the prefix cache when it was first scheduled
  int32_t generated_tokens;  // the stop token too

  SteadyTime arrival;
  std::optional<SteadyTime> first_scheduled;  // planned into a step
  std::optional<SteadyTime> first_token;      // the step that sampled it was committed
  SteadyTime ended;
};

// News of one sequence. The tokens stay where the executor wrote them: two ranges are of the
// `tokens` of the StepResult that was committed, which goes along with the events for as long as
// they are read.
struct TokenEvent {
  SequenceId id;
  Range scored;                    // the prompt's next tokens, beginning with its second
  Range sampled;                   // the next generated tokens
  Range embedding;                 // of the result's `embeddings`, of a model of embeddings
  int32_t cached_tokens = 0;       // of the prompt's, as SequenceEnd has them
  std::optional<SequenceEnd> end;  // set in the last event of a sequence, and only there
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_TOKEN_EVENT_H_
