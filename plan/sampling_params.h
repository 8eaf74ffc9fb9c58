// The sampling parameters of a sequence, with their defaults and ranges. They are a plain value,
// validated at admission and handed to the executor once, when the sequence takes its slot.
#ifndef MILLRACE_PLAN_SAMPLING_PARAMS_H_
#define MILLRACE_PLAN_SAMPLING_PARAMS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/token.h"

namespace millrace {

// The largest SamplingParams::top_logprobs, and the most entries of its logit_bias.
inline constexpr int32_t kMaxTopLogprobs = 20;
inline constexpr size_t kMaxLogitBiases = 1024;

// The declaration of a numeric sampling parameter: its name, default and range. ValidateRequest
// (engine/request/request.cc) enforces the range. `otherwise` is the default, and applies where
// neither the request nor the model's generation_config.json gives a value; all defaults have no
// effect, but for temperature 1, which samples. `least` and `most` are the minimum and the maximum,
// both allowed unless `above_least`.
template <typename Number>
struct SamplingNumber {
  const char* name;
  Number otherwise;
  Number least;
  Number most;
  const char* allowed;       // the range in words, for messages
  bool above_least = false;  // the minimum itself is not allowed

  // Returns whether the value is in the range. NaN is not.
  constexpr bool Allows(Number value) const {
    return (above_least ? value > least : value >= least) && value <= most;
  }
};

inline constexpr SamplingNumber<float> kTemperature{"temperature", 1, 0, 2, "0 to 2"};
inline constexpr SamplingNumber<int32_t> kTopK{"top_k", 0, -1, INT32_MAX,
                                               "at least 1, or 0 or -1 for off"};
inline constexpr SamplingNumber<float> kTopP{"top_p", 1, 0, 1, "above 0, at most 1", true};
inline constexpr SamplingNumber<float> kMinP{"min_p", 0, 0, 1, "0 to 1"};
inline constexpr SamplingNumber<float> kTypicalP{"typical_p", 1, 0, 1, "above 0, at most 1", true};
inline constexpr SamplingNumber<float> kRepetitionPenalty{"repetition_penalty",   1,   0, 100,
                                                          "above 0, at most 100", true};
inline constexpr SamplingNumber<float> kFrequencyPenalty{"frequency_penalty", 0, -2, 2, "-2 to 2"};
inline constexpr SamplingNumber<float> kPresencePenalty{"presence_penalty", 0, -2, 2, "-2 to 2"};

struct LogitBias {
  Token token;
  float bias;  // [-100, 100]
};

// How a sequence is sampled. Logits are changed in this order before a token is taken (vLLM's
// order; typical_p is last, as in Hugging Face's transformers):
//   logit_bias          logit += bias
//   repetition_penalty  logit = logit > 0 ? logit / r : logit * r, of each token in the prompt or
//                       among those generated (Keskar et al., arXiv:1909.05858)
//   frequency_penalty   logit -= frequency * (times that the token was generated)
//   presence_penalty    logit -= presence, of each token that was generated
//   banned_tokens       logit = -inf
//   temperature         p = exp((logit - largest) / temperature)
//   min_p, top_k, top_p, typical_p  each of what the ones before it left
// Log-probabilities and ranks are always those of the raw logits, before any of it.
struct SamplingParams {
  // 0 takes the largest logit, of equal ones the lowest id.
  float temperature = kTemperature.otherwise;
  int32_t top_k = kTopK.otherwise;  // keep this many of the likeliest tokens; 0 keeps all
  float top_p = kTopP.otherwise;    // keep the smallest set whose probability reaches this
  float min_p = kMinP.otherwise;    // drop tokens less likely than this times the likeliest

  // Keep the smallest set whose probability reaches this, taken in the order of how far
  // -log(p) is from the entropy (Meister et al., arXiv:2202.00666); of equally far ones the
  // likelier, then the lower id, first.
  float typical_p = kTypicalP.otherwise;

  float repetition_penalty = kRepetitionPenalty.otherwise;
  float frequency_penalty = kFrequencyPenalty.otherwise;
  float presence_penalty = kPresencePenalty.otherwise;

  std::vector<LogitBias> logit_bias;  // at most kMaxLogitBiases, each token once

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

  // Returns whether earlier tokens change the logits, so that sampling needs their counts.
  bool penalizes() const {
    return repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0;
  }
};

}  // namespace millrace

#endif  // MILLRACE_PLAN_SAMPLING_PARAMS_H_
