// What goes into the scheduler.
#ifndef MILLRACE_SCHEDULER_SEQUENCE_REQUEST_H_
#define MILLRACE_SCHEDULER_SEQUENCE_REQUEST_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "scheduler/block_hash.h"
#include "scheduler/sampling_params.h"
#include "scheduler/step_plan.h"

namespace millrace {

using SequenceId = uint64_t;  // the caller's; never two alive with the same

// What ends a sequence by itself. Reaching the model's length does too.
struct StopCriteria {
  int32_t max_tokens = 0;  // to generate; 0: only work through the prompt
  std::vector<Token>
      stop_token_ids;  // the end-of-sequence tokens too, unless they are to be ignored
};

// One choice of one prompt.
struct SequenceRequest {
  SequenceId id = 0;
  std::vector<Token> prompt;
  BlockHashes prompt_hashes;  // HashPrompt's; not read where the prefix cache is off
  std::shared_ptr<const SamplingParams> sampling;
  StopCriteria stop;
  int32_t priority = 0;  // lower first

  // Not 0: the sequences alive with the same number have the same prompt. One of them computes it;
  // the others wait for that and take over its blocks.
  uint64_t prompt_group = 0;

  // The log-probability of each prompt token but the first is wanted. Needs sampling->top_logprobs.
  // Takes nothing from the prefix cache, which holds no logits.
  bool score_prompt = false;

  SteadyTime arrival;  // at the door: only for SequenceEnd's timings
};

// How many tokens can follow a prompt: the model's length and the pool bound them. Not positive:
// see CheckFits.
int64_t MaxNewTokens(int64_t prompt_tokens, const StepLimits& limits);

// OutOfRange, with both numbers, where a prompt and `new_tokens` after it could never be held,
// however idle the server is. For the door: `new_tokens` is what the client insists on, else 1.
absl::Status CheckFits(int64_t prompt_tokens, int64_t new_tokens, const StepLimits& limits);

// InvalidArgument, naming the field: what Scheduler::Add would refuse. Reads the prompt once.
absl::Status ValidateSequence(const SequenceRequest& request, const StepLimits& limits,
                              bool prefix_caching);

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_SEQUENCE_REQUEST_H_
