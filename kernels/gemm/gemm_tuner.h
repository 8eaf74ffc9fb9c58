// Measures which config computes a product fastest, for each range of tokens, on the current device
// when a model is loaded. Of an exact plan's configs only those that keep exactness are measured,
// and the chosen one is compared, bit for bit, with the reference order: our own kernel's, or where
// that cannot run one algorithm of cuBLASLt's for all numbers of tokens.
//
// Unlike kernels, a tuner allocates device memory, and waits for the device. Nothing else may run
// on the device meanwhile.
#ifndef MILLRACE_KERNELS_GEMM_GEMM_TUNER_H_
#define MILLRACE_KERNELS_GEMM_GEMM_TUNER_H_

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/gemm/gemm_desc.h"
#include "kernels/gemm/linear.h"

namespace millrace::kernels {

class GemmTuner {
 public:
  // `weights`: at least one matrix [rows][stride] in device memory, constant meanwhile; with enough
  // of them none is in the L2 cache when its turn comes. Null, with the reason in *error, where the
  // device lacks the memory or the product cannot be tuned (block scales have no alternatives).
  static std::unique_ptr<GemmTuner> Make(const CublasLt& lt, const LinearOptions& options,
                                         const GemmDesc& desc, std::vector<const void*> weights,
                                         std::string* error);
  ~GemmTuner();

  // Up to how many tokens Tune measures: a bound of ranges (kTokenBounds), at most the one
  // of the options' max_tokens. Products of more favour no other config.
  static int64_t MeasuredTokens(const GemmDesc& desc, const LinearOptions& options);

  // Returns the fastest configs of all ranges up to MeasuredTokens. Nothing, with the reason in
  // *error, where the device fails.
  std::optional<GemmRanges> Tune(std::string* error);

  // Returns whether all ranges give the reference bits. For ranges of another origin.
  bool HasReferenceBits(const GemmRanges& ranges);

  // Configs that said that they sum in order and did not, as text.
  const std::vector<std::string>& rejected() const;

  // Each range's fastest config by itself, in µs, as Tune measured them.
  const std::vector<TimedRange>& times() const;

 private:
  struct State;
  explicit GemmTuner(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Tunes a product for the planner, and has it learn the ranges, which are returned, too.
std::optional<GemmRanges> TuneAndLearn(LinearPlanner& planner, const GemmDesc& desc,
                                       std::vector<const void*> weights, std::string* error);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_GEMM_TUNER_H_
