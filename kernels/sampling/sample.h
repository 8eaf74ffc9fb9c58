// Logits to tokens: samples or scores the rows of a step, all on the device.
//
// What is computed is what scheduler/sampling_params.h says and executors/cpu/sampler.cc does. For
// a row that samples, in this order:
//   banned tokens       logit = -inf, for positions below banned_before (min_tokens)
//   bias                logit += bias
//   repetition penalty  logit = logit > 0 ? logit / r : logit * r, of each token in the history
//   frequency penalty   logit -= frequency * (times that the token was generated)
//   presence penalty    logit -= presence, of each token that was generated
//   temperature         p = exp((logit - largest) / temperature); 0, or top_k 1: takes the largest
//   min_p               drops p < min_p
//   top_k               keeps the likeliest k
//   top_p               keeps the likeliest whose sum reaches top_p of what is left
//   typical_p           keeps, of what is left, those whose -log(p) is nearest to the entropy and
//                       whose sum reaches typical_p of it (Meister et al., arXiv:2202.00666)
//   draw                inverts the distribution function over the kept tokens, in the order of
//                       their ids, at Philox(seed; position, sample_index)
// Of equal logits the lower id is the likelier. The log-probabilities and ranks are those of the
// raw logits. A row with a target is scored: nothing is drawn and nothing of the above changes a
// thing.
//
// Deterministic: a row's result is a function of its logits, parameters and history alone, bit for
// bit. Sums are integers (a probability is counted in units of 2^-44 of the likeliest token's) or
// trees that the vocabulary's size fixes.
//
// How: one kernel reads the logits once and leaves the maximum and the sum of each tile of 256
// tokens. A second one, a block a row, knows from those what to read again: one tile to take the
// largest or to draw without filters, the tiles that reach the k-th largest of the tiles' maxima
// for top_k. Where top_p leaves most tiles in the race, a sample of the row tells between which
// logits its cut lies, and one reading of the row lists the tokens there and weighs those above.
// Where that fails, as with many equal logits, histograms narrow the cut until the rest fits the
// list; so they do for typical_p, in the order of its own. (Pivots without sorting: FlashInfer's
// sampling; Qrita, arXiv:2602.01518. Philox: Salmon et al., SC11.)
#ifndef MILLRACE_KERNELS_SAMPLING_SAMPLE_H_
#define MILLRACE_KERNELS_SAMPLING_SAMPLE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace millrace::kernels {

inline constexpr int kMaxSampledVocab = 262144;  // 1024 tiles
inline constexpr int kMaxSampledTop = 20;

// How one slot samples: written when a sequence takes the slot. The ranges are SamplingParams', and
// are the caller's to keep; so is that token ids are in [0, vocab_size).
struct SlotSampling {
  float temperature;
  int32_t top_k;  // 0 keeps all
  float top_p;
  float min_p;
  uint64_t seed;
  uint32_t sample_index;
  int32_t top_logprobs;      // negative: no log-probabilities; else this many beside the token's
  float repetition_penalty;  // > 0; 1 for none. Of the prompt's and the generated tokens
  float frequency_penalty;  // 0 for none. Of the generated tokens, those at prompt_length and after
  float presence_penalty;   // 0 for none
  int32_t prompt_length;    // positions [0, prompt_length) are the prompt
  int32_t num_banned;       // the first entries of the slot's `biases`; their bias is not read
  int32_t banned_before;    // position from which they are allowed
  int32_t num_biases;       // the entries after those, each token once
  float typical_p;          // 1 keeps all
};

struct TokenBias {
  int32_t token;
  float bias;  // finite
};

// What is asked of one row of logits.
struct SampleRow {
  int32_t slot;
  int32_t position;  // of the token to choose or score
  int32_t target;    // the token to score; negative: sample one
};

struct SampleResult {
  int32_t token;  // the target, or the sampled one; 0 if not ok
  int32_t ok;     // 0: a logit was not finite, or all tokens are banned; the rest means nothing
  float logprob;  // these two are written where the slot asks for log-probabilities
  int32_t rank;   // 1 + the number of tokens with a larger raw logit
};

struct SampleTop {
  int32_t token;
  float logprob;
};

// All pointers are the device's. Rows from *num_rows on are not looked at, nor is anything written
// for them. A slot that no sequence has may be named by padding rows like any other.
struct SampleArgs {
  const float* logits;  // [max_rows, logits_stride], 16-byte aligned; columns < vocab_size are read
  int64_t logits_stride;    // elements, a multiple of 4
  int vocab_size;           // 1 to kMaxSampledVocab
  int max_rows;             // 1 to 65535; the grids' size
  const int32_t* num_rows;  // at most max_rows
  const SampleRow* rows;    // [max_rows]
  const SlotSampling* slots;

  // [slots, biases_stride] and [slots, history_stride]. A slot's history holds the token of each
  // position below the row's; a sampled token is written to its position there. Either may be null
  // where no slot has banned or biased tokens, or penalties.
  const TokenBias* biases;
  int64_t biases_stride;
  int32_t* history;
  int64_t history_stride;  // positions at or past it are neither read nor written

  // Scratch. `adjusted` takes the logits of the rows with bans, biases or penalties; null where no
  // slot has any. 16-byte aligned both.
  float* adjusted;  // [max_rows, logits_stride]
  void* workspace;  // SampleWorkspaceBytes(max_rows, vocab_size)

  // Out. In one allocation, results first, they come to the host in one copy.
  int32_t* last_tokens;   // [slots]: the sampled token (not a target) of each sampled slot
  SampleResult* results;  // [max_rows]
  SampleTop* tops;        // [max_rows, kMaxSampledTop]: the likeliest tokens, min(top_logprobs,
                    // vocab_size) of them, where the slot asks for any; may be null where none does
};

size_t SampleWorkspaceBytes(int max_rows, int vocab_size);

// Two launches, whatever the rows ask for. cudaErrorInvalidValue for sizes out of range, misaligned
// or missing pointers; then nothing was launched.
cudaError_t LaunchSample(const SampleArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_SAMPLING_SAMPLE_H_
