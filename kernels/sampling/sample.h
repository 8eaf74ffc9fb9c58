// Logits to tokens: samples or scores the rows of a step, all on the device.
//
// The logits of a row are factor * y, or soft_cap * tanh(factor * y / soft_cap), of the head's
// products y (logit_factor and logit_soft_cap); all that follows reads them.
//
// The semantics are those of plan/sampling_params.h, as executors/host/sampler.cc implements
// them. A row that samples applies, in this order:
//   banned tokens       logit = -inf, for positions below banned_before (min_tokens)
//   bias                logit += bias
//   repetition penalty  logit = logit > 0 ? logit / r : logit * r, of each token in the history
//   frequency penalty   logit -= frequency * (times that the token was generated)
//   presence penalty    logit -= presence, of each token that was generated
//   mask                logit = -inf, of each token whose bit is not set
//   temperature         p = exp((logit - largest) / temperature); 0, or top_k 1: takes the largest
//   min_p               drops p < min_p
//   top_k               keeps the likeliest k
//   top_p               keeps the likeliest until their sum reaches top_p of the remainder
//   typical_p           keeps, of the remainder, those whose -log(p) is nearest to the entropy
//                       until their sum reaches typical_p of it (Meister et al.,
//                       arXiv:2202.00666)
//   draw                inverts the distribution function over the kept tokens, in the order of
//                       their ids, at Philox(seed; position, sample_index)
// Among equal logits the lower id is the likelier. Log-probabilities and ranks are those of the raw
// logits. A row with a target is scored: nothing is drawn, and none of the above applies.
//
// Deterministic: a row's result is a function of its logits, parameters and history alone, bit for
// bit. Sums are integers (a probability is counted in units of 2^-44 of the likeliest token's) or
// trees that the vocabulary's size fixes.
//
// Algorithm: the first kernel reads the logits once, writes them back where a factor or a cap
// changed them, and stores the maximum and the sum of each tile of 256 tokens. The second kernel,
// with one block per row, derives from them which tiles to read again: none to take the largest,
// one to draw without filters, and for top_k those whose maximum reaches the k-th largest tile
// maximum. Where most tiles can hold tokens at top_p's cut, a sample of the row estimates between
// which logits the cut lies, and one reading of the row lists the tokens there and sums the mass
// above. Where that fails, as with many equal logits, histograms narrow the range until the
// remainder fits the list; typical_p uses them too, in its own order. (Pivots without sorting:
// FlashInfer's sampling; Qrita, arXiv:2602.01518. Philox: Salmon et al., SC11.)
#ifndef MILLRACE_KERNELS_SAMPLING_SAMPLE_H_
#define MILLRACE_KERNELS_SAMPLING_SAMPLE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace millrace::kernels {

inline constexpr int kMaxSampledVocab = 262144;  // 1024 tiles
inline constexpr int kMaxSampledTop = 20;

// Sampling parameters of a slot, written when a sequence takes the slot. The caller ensures the
// ranges of SamplingParams and token ids in [0, vocab_size).
struct SlotSampling {
  float temperature;
  int32_t top_k;  // 0 keeps all
  float top_p;
  float min_p;
  uint64_t seed;
  uint32_t sample_index;
  // tokens reported beside the row's own; negative: no log-probabilities at all
  int32_t top_logprobs;
  float repetition_penalty;  // > 0, 1 for none; applies to prompt and generated tokens
  float frequency_penalty;   // 0 for none; applies to generated tokens, those from prompt_length on
  float presence_penalty;    // 0 for none
  int32_t prompt_length;     // positions [0, prompt_length) are the prompt
  int32_t num_banned;        // the first entries of the slot's `biases`, whose bias is ignored
  int32_t banned_before;     // position from which these tokens are allowed
  int32_t num_biases;        // the entries after the banned ones; each token occurs once
  float typical_p;           // 1 keeps all
};

struct TokenBias {
  int32_t token;
  float bias;  // finite
};

// A row of logits to sample or score.
struct alignas(16) SampleRow {
  int32_t slot;
  int32_t position;  // of the token to choose or score
  int32_t target;    // the token to score; negative samples one
  // The row of SampleArgs::masks that tells which tokens may be sampled; negative allows all.
  int32_t mask = -1;
};

struct SampleResult {
  int32_t token;  // the target, or the sampled one; 0 if not ok
  // 0 if a logit was not finite or no token is allowed; the other fields are then undefined
  int32_t ok;
  float logprob;  // logprob and rank are written if the slot requests log-probabilities
  int32_t rank;   // 1 + the number of tokens with a larger raw logit
};

struct SampleTop {
  int32_t token;
  float logprob;
};

// Tells when the masks of a set of `rows` consecutive ones may be read: once ready[set] has reached
// wanted[set], where both count on and on. A copy writes `ready` while the kernels run, which lets
// masks come that late.
struct MaskArrival {
  const uint32_t* wanted = nullptr;  // null: all masks are there
  const uint32_t* ready = nullptr;
  int rows = 0;
  uint64_t timeout_ns = 0;  // how long a row waits. It fails then.
};

// All pointers are to device memory. Rows from *num_rows on are neither read nor written. Padding
// rows may name a slot that no sequence has.
struct SampleArgs {
  // [max_rows, logits_stride], 16-byte aligned; columns < vocab_size are read. The head's products:
  // the logits take their place where a factor or a cap makes others of them.
  float* logits;
  int64_t logits_stride;    // elements, a multiple of 4
  int vocab_size;           // 1 to kMaxSampledVocab
  int max_rows;             // 1 to 65535; the grid's size
  const int32_t* num_rows;  // at most max_rows
  const SampleRow* rows;    // [max_rows]
  const SlotSampling* slots;

  // [slots, biases_stride] and [slots, history_stride]. A slot's history holds the token at each
  // position before the row's; a sampled token is written to its own position. Either may be null
  // if no slot has banned or biased tokens, or penalties.
  const TokenBias* biases;
  int64_t biases_stride;
  int32_t* history;
  int64_t history_stride;  // positions at or past it are neither read nor written

  // Scratch, 16-byte aligned. `adjusted` receives the logits of rows that draw with bans, biases,
  // penalties or a mask, and may be null if there are none.
  float* adjusted;  // [max_rows, logits_stride]
  void* workspace;  // SampleWorkspaceBytes(max_rows, vocab_size)

  // Outputs. If results and tops share one allocation, results first, one copy brings both to the
  // host.
  int32_t* last_tokens;   // [slots]: the sampled token (not a target) of each sampled slot
  SampleResult* results;  // [max_rows]
  // [max_rows, kMaxSampledTop]: the min(top_logprobs, vocab_size) likeliest tokens, if the slot
  // requests them. May be null if no slot does.
  SampleTop* tops;

  float logit_factor = 1;
  float logit_soft_cap = 0;  // 0: none

  // [masks, masks_stride]: bit t % 32 of a row's word t / 32 is set if token t may be sampled. Only
  // the rows that SampleRow::mask names are read. May be null if none is named.
  const uint32_t* masks = nullptr;
  int64_t masks_stride = 0;  // words, at least (vocab_size + 31) / 32 if there are masks
  MaskArrival mask_arrival = {};
};

size_t SampleWorkspaceBytes(int max_rows, int vocab_size);

// Makes two launches, whatever the rows request. Returns cudaErrorInvalidValue, before any launch,
// for sizes out of range and misaligned or missing pointers.
cudaError_t LaunchSample(const SampleArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_SAMPLING_SAMPLE_H_
