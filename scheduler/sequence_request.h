// The scheduler's input.
#ifndef MILLRACE_SCHEDULER_SEQUENCE_REQUEST_H_
#define MILLRACE_SCHEDULER_SEQUENCE_REQUEST_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "plan/sampling_params.h"
#include "plan/step_plan.h"
#include "scheduler/block_hash.h"
#include "speculative/drafter.h"

namespace millrace {

using SequenceId = uint64_t;  // the caller's; never two alive with the same

// Whom a sequence is served for. Tenants with work share the steps' tokens in proportion to their
// weights.
struct TenantShare {
  uint32_t id = 0;
  int32_t weight = 1;  // 1 to kMaxTenantWeight; the one of a tenant's latest sequence counts
};
inline constexpr int32_t kMaxTenantWeight = 10'000;

// The conditions that end a sequence by itself; reaching the model's length is another.
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
  int32_t priority = 0;  // lower first, across tenants
  TenantShare tenant;

  // Not 0: the sequences alive with the same number have the same prompt. One of them computes it;
  // the others wait for that and take over its blocks.
  uint64_t prompt_group = 0;

  // The log-probability of each prompt token but the first is wanted. Needs sampling->top_logprobs.
  // Takes nothing from the prefix cache, which holds no logits.
  bool score_prompt = false;

  // StepRow::second_type, for an encoder.
  std::optional<int32_t> second_type;

  // The sequence's tokens are sampled under masks: this one for the first, and for each later one
  // Scheduler::SetMask's. Null: without. Unless the executor takes late masks, a row
  // is only planned once its mask is known, so that no other row ever waits for it.
  std::shared_ptr<const SampleMask> first_mask;

  // Guesses what follows, and has been given the prompt; the scheduler gives it the tokens after
  // that. Null: nothing is guessed. No other sequence has the same one.
  std::shared_ptr<Drafter> drafter;

  SteadyTime arrival;  // of the request: only for SequenceEnd's timings
};

// Returns how many tokens can follow a prompt, by the model's length and the pool. Not positive:
// see CheckFits.
int64_t MaxNewTokens(int64_t prompt_tokens, const StepLimits& limits);

// Returns OutOfRange, with both numbers, if a prompt and `new_tokens` after it could never be held,
// however idle the server is. Admission checks it: `new_tokens` is the client's max_tokens, else 1.
absl::Status CheckFits(int64_t prompt_tokens, int64_t new_tokens, const StepLimits& limits);

// Returns InvalidArgument, naming the field, for a request that Scheduler::Add would refuse. Reads
// the prompt once.
absl::Status ValidateSequence(const SequenceRequest& request, const StepLimits& limits,
                              bool prefix_caching);

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_SEQUENCE_REQUEST_H_
