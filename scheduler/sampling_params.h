// How one sequence's next token is chosen. A plain value: validated at the door, handed to the
// executor once, when the sequence takes its slot.
#ifndef MILLRACE_SCHEDULER_SAMPLING_PARAMS_H_
#define MILLRACE_SCHEDULER_SAMPLING_PARAMS_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace millrace {

// An index into the model's vocabulary, in [0, vocab_size).
using Token = int32_t;

// The most SamplingParams::top_logprobs.
inline constexpr int32_t kMaxTopLogprobs = 20;

// The filters apply in this order, as vLLM applies them: banned tokens, temperature, min_p, top_k,
// top_p. Log-probabilities are always those of the raw logits, before any of them.
struct SamplingParams {
  float temperature = 1.0f;  // [0, 2]; 0 takes the largest logit, of equal ones the lowest id
  int32_t top_k = 0;         // keep this many of the likeliest tokens; 0 keeps all
  float top_p = 1.0f;        // (0, 1]: keep the smallest set whose probability reaches this
  float min_p = 0.0f;        // [0, 1]: drop tokens less likely than this times the likeliest

  // A random number is a function of (seed, sample_index, position of the sampled token) alone, so
  // a token does not depend on the batch, on chunking or on preemption.
  uint64_t seed = 0;
  uint32_t sample_index = 0;  // which of a request's choices this sequence is

  // Unset: none are computed. Set: the log-probability of every sampled or scored token and, beside
  // it, of this many of the likeliest tokens (0 to 20).
  std::optional<int32_t> top_logprobs;

  // min_tokens: `banned_tokens` cannot be sampled for a position below `banned_before`.
  std::vector<Token> banned_tokens;
  int32_t banned_before = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_SAMPLING_PARAMS_H_
