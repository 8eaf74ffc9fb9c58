// What cuBLASLt is asked for a linear layer, and which of its algorithms may answer. For linear.cc
// and its tuner (linear_bench.cu).
#ifndef MILLRACE_KERNELS_GEMM_LINEAR_ALGORITHMS_H_
#define MILLRACE_KERNELS_GEMM_LINEAR_ALGORITHMS_H_

#include <cublasLt.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/gemm/cublaslt_api.h"
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
  LinearShape shape;
  bool fast_accumulation;
  int64_t tokens;
  int64_t output_stride;
  const float* weight_scales;
  const float* input_scales;
};
cublasStatus_t MakeMatmul(const CublasLt& lt, const MatmulArgs& args, Matmul* matmul);

// The same for a choice of algorithm: no data yet, dense output.
Matmul PlanningMatmul(const CublasLt& lt, const LinearShape& shape, bool fast_accumulation,
                      int64_t tokens);

// All that tells one of cuBLASLt's algorithms from another; what the numbers mean is in cublasLt.h
// (cublasLtMatmulAlgoConfigAttributes_t) and differs from version to version.
struct AlgorithmConfig {
  uint16_t id;
  uint16_t tile;
  uint16_t stages;
  uint16_t split_k;
  uint16_t reduction;
  uint16_t swizzle;
  uint16_t custom;
  uint16_t inner_shape;
  uint16_t cluster_shape;

  friend bool operator==(const AlgorithmConfig&, const AlgorithmConfig&) = default;
};
struct Algorithm {
  cublasLtMatmulAlgo_t cublas;
  AlgorithmConfig config;
};

// The algorithm of a config, whether or not it can run anything. Nothing for an id that the library
// does not have for this shape's types.
std::optional<Algorithm> MakeAlgorithm(const CublasLt& lt, const LinearShape& shape,
                                       const AlgorithmConfig& config);

// What cuBLASLt's heuristic proposes, the one that it thinks fastest first, `limit` at most. Of an
// exact plan only those that sum K in one piece.
std::vector<Algorithm> ProposeAlgorithms(const CublasLt& lt, const LinearShape& shape,
                                         const LinearOptions& options, int64_t tokens, int limit);

// Whether the algorithm sums K in one piece and in order. All that do give the same bits
// (linear_bench.cu looks, and names those that do not).
constexpr bool IsExact(const AlgorithmConfig& config) {
  // Says that it does not split K, has no tile, and sums in an order of its own (4096x14336 BF16).
  constexpr int kOddOne = 16;
  return config.split_k <= 1 && config.reduction == CUBLASLT_REDUCTION_SCHEME_NONE &&
         config.id != kOddOne;
}

// Whether the algorithm can run the product within the workspace.
bool CanRun(const CublasLt& lt, Matmul matmul, const Algorithm& algorithm, size_t workspace_bytes);

cublasStatus_t RunMatmul(const CublasLt& lt, Matmul matmul, const LinearArgs& args,
                         const Algorithm& algorithm, size_t workspace_bytes, cudaStream_t stream);

// Whether it can for the plan's least and most tokens of a range.
bool CanRunBetween(const CublasLt& lt, const LinearShape& shape, const LinearOptions& options,
                   const Algorithm& algorithm, int64_t least, int64_t most);

// What a plan takes for [least, most] tokens where nothing was measured; nothing where cuBLASLt has
// no algorithm that can run at both.
struct Choice {
  int64_t
      run_tokens;  // on how many rows it runs best, if there is room (LinearRoom); at least most
  Algorithm algorithm;
};
std::optional<Choice> DefaultChoice(const CublasLt& lt, const LinearShape& shape,
                                    const LinearOptions& options, int64_t least, int64_t most);

// An algorithm is chosen for every range (previous bound, bound] of tokens.
inline constexpr int64_t kTokenBounds[] = {1,   8,   16,  32,  48,   64,   96,   128,
                                           192, 256, 384, 512, 1024, 2048, 4096, 8192};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_LINEAR_ALGORITHMS_H_
