// Samples or scores one token from the logits of one position.
#ifndef MILLRACE_EXECUTORS_HOST_SAMPLER_H_
#define MILLRACE_EXECUTORS_HOST_SAMPLER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "executors/host/sampling_kernels.h"
#include "executors/host/token_counts.h"
#include "executors/slot_results.h"
#include "plan/step_plan.h"

namespace millrace {

struct SampleRequest {
  const SamplingParams* params;
  int32_t position;                      // of the token to sample or score
  std::optional<Token> target;           // if set, the token to score
  const TokenCounts* counts = nullptr;   // of the tokens before `position`; set if params penalize
  absl::Span<const Token> drafted = {};  // the last tokens before `position`, beside those counted
  const SampleMask* mask = nullptr;      // if set, the tokens that may be sampled
};

// Computes Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11).
std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Returns a uniform number in [0, 1), a function of its arguments alone: Philox with the seed as
// key.
double UniformRandom(uint64_t seed, uint32_t sample_index, int32_t position);

// The sampler of one thread. Owns scratch memory.
class Sampler {
 public:
  // Bytes of scratch memory that a token of the vocabulary takes at the most.
  static constexpr size_t kTokenBytes = 3 * sizeof(float) + 2 * sizeof(int32_t) + sizeof(double);

  // Samples from `logits`, [vocab_size], as SamplingParams describes. A token is drawn by inverting
  // the distribution function over the kept tokens in the order of their ids. Reuses result->top's
  // memory.
  void Sample(const SamplingKernels& kernels, absl::Span<float> logits,
              const SampleRequest& request, Sampled* result);

 private:
  void Top(const SamplingKernels& kernels, absl::Span<const float> logits, float largest,
           int num_top, float log_sum, std::vector<TokenLogprob>* top);
  bool Choose(const SamplingKernels& kernels, absl::Span<float> logits,
              const SampleRequest& request, float largest, int best, Token* token);
  void Adjust(absl::Span<float> logits, const SampleRequest& request);
  absl::Span<float> Mask(absl::Span<const float> logits, const SampleMask& mask);
  void Set(absl::Span<float> logits, Token token, float logit);
  Token Draw(const SamplingKernels& kernels, absl::Span<const float> logits, float largest,
             const SamplingParams& params, int32_t position);
  Token Walk(double target) const;
  void SelectCandidates(const SamplingKernels& kernels, const SamplingParams& params, double total);
  void KeepLikeliest(size_t count);
  void KeepTypical(absl::Span<const float> logits, float largest, double factor, double typical_p,
                   double mass);
  // Keeps the first candidates in the order of `before` whose sum reaches `mass`.
  template <typename Before>
  void KeepMass(double mass, Before before);
  template <typename Before>
  void KeepUpTo(int32_t last, Before before);
  bool Likelier(int32_t a, int32_t b) const;
  double Mass(absl::Span<const int32_t> tokens) const;

  std::vector<float> p_;             // [vocab], relative to the likeliest token's
  std::vector<double> run_sums_;     // of p_, one per run
  std::vector<float> masked_;        // [vocab], the logits under a mask
  std::vector<int32_t> candidates_;  // tokens not filtered out, ascending
  std::vector<int32_t> order_;       // the same, being sorted
  std::vector<double> untypical_;    // [vocab], for the candidates: distance from the entropy
  std::vector<std::pair<Token, float>> replaced_;  // original logits, in the order of changes
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_HOST_SAMPLER_H_
