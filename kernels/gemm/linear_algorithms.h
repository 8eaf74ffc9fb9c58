// cuBLASLt's side of a linear layer: its descriptors of a product, its algorithms, and which of
// them keep exactness. For the plans (linear_plan.h), the rules and the tuner.
#ifndef MILLRACE_KERNELS_GEMM_LINEAR_ALGORITHMS_H_
#define MILLRACE_KERNELS_GEMM_LINEAR_ALGORITHMS_H_

#include <cublasLt.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/gemm/cublaslt_api.h"
#include "kernels/gemm/gemm_desc.h"
#include "kernels/gemm/linear.h"

namespace millrace::kernels {

// One product in cuBLASLt's words. Its matrices are column by column, so A is the weight
// (transposed), B the input and D the output transposed: D[row + token * output_stride]. Plain
// values, made on the stack for each launch (cuBLASLt takes them without const, and leaves them).
struct Matmul {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t weight;
  cublasLtMatrixLayoutOpaque_t input;
  cublasLtMatrixLayoutOpaque_t output;
};

// Null scales are 1. `tokens` is rounded up for block scales.
struct MatmulArgs {
  GemmDesc desc;
  bool fast_accumulation;
  int64_t tokens;
  int64_t output_stride;
  const float* weight_scales;
  const float* input_scales;
};
cublasStatus_t MakeMatmul(const CublasLt& lt, const MatmulArgs& args, Matmul* matmul);

// Returns the Matmul for a choice of algorithm: no data yet, dense output.
Matmul PlanningMatmul(const CublasLt& lt, const GemmDesc& desc, bool fast_accumulation,
                      int64_t tokens);

struct Algorithm {
  cublasLtMatmulAlgo_t cublas;
  AlgorithmConfig config;
};

// Returns the algorithm of a config, whether or not it can run anything. Nothing for an id that the
// library does not have for this shape's types.
std::optional<Algorithm> MakeAlgorithm(const CublasLt& lt, const GemmDesc& desc,
                                       const AlgorithmConfig& config);

// Returns the proposals of cuBLASLt's heuristic, the one that it thinks fastest first, `limit` at
// most. Of an exact plan only those that sum K in one piece.
std::vector<Algorithm> ProposeAlgorithms(const CublasLt& lt, const GemmDesc& desc,
                                         const LinearOptions& options, int64_t tokens, int limit);

// Returns whether the algorithm sums K in one piece and in order. All such algorithms give the same
// bits (gemm_tuner.h compares them, and drops those that differ).
constexpr bool IsExact(const AlgorithmConfig& config) {
  // cuBLASLt reports that this algorithm does not split K and has no tile, but it sums in another
  // order (seen on 4096x14336 BF16).
  constexpr int kOddOne = 16;
  return config.split_k <= 1 && config.reduction == CUBLASLT_REDUCTION_SCHEME_NONE &&
         config.id != kOddOne;
}

// Returns whether the algorithm can run the product within the workspace.
bool CanRun(const CublasLt& lt, Matmul matmul, const Algorithm& algorithm, size_t workspace_bytes);

cublasStatus_t RunMatmul(const CublasLt& lt, Matmul matmul, const LinearArgs& args,
                         const Algorithm& algorithm, size_t workspace_bytes, cudaStream_t stream);

// Returns whether it can for the plan's least and most tokens of a range.
bool CanRunBetween(const CublasLt& lt, const GemmDesc& desc, const LinearOptions& options,
                   const Algorithm& algorithm, int64_t least, int64_t most);

// Returns the config with which cuBLASLt would compute [least, most] tokens, guessed from its
// heuristic without a measurement. Nothing where it has no algorithm that can run at both.
std::optional<GemmConfig> DefaultConfig(const CublasLt& lt, const GemmDesc& desc,
                                        const LinearOptions& options, int64_t least, int64_t most);

// Returns the algorithms worth measuring for a range that ends at `tokens`, without those of other
// ranges.
std::vector<AlgorithmConfig> ProposedConfigs(const CublasLt& lt, const GemmDesc& desc,
                                             const LinearOptions& options, int64_t tokens);

// Returns whether all configs of cuBLASLt are among those that it proposes itself for some range:
// it has been seen to crash on numbers that it does not know.
bool AreProposed(const CublasLt& lt, const GemmDesc& desc, const LinearOptions& options,
                 const GemmRanges& ranges);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_LINEAR_ALGORITHMS_H_
