// Linears with four-bit weights in long steps: their weights are expanded to BF16, each in turn
// into one workspace of the rank, and multiplied as BF16 weights are. The kernels for four bits
// unpack a weight again for each tile of tokens, and of weights with few rows they have too few
// tiles for all SMs: with many tokens that costs more than to expand.
#ifndef MILLRACE_EXECUTORS_CUDA_WEIGHTS_EXPANSION_H_
#define MILLRACE_EXECUTORS_CUDA_WEIGHTS_EXPANSION_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gemm/linear.h"

namespace millrace::cuda {

struct CudaWeights;
struct FourBitLinear;

// The fewest tokens of a step that may expand a weight. For up to 128 the plans of BF16 weights are
// kernels that read weights before the kernel before them, which expands, has ended.
inline constexpr int64_t kExpandFrom = 129;

// The way in which a weight is expanded: in pieces of rows, one at a time.
struct CudaExpansion {
  int64_t piece_rows;  // of the weight's rows; a multiple of kFourBitRows, or all
  const kernels::LinearPlan* plan = nullptr;       // of a piece
  const kernels::LinearPlan* last_plan = nullptr;  // of the last one, which may have fewer rows
};

// Returns the expansion, without plans, of a weight with so many rows and padded columns.
CudaExpansion DescribeExpansion(int64_t rows, int64_t stride);

// Returns whether a step of so many tokens expands the linear's weight: where that is faster
// (kernels::ExpandingIsFaster).
bool Expands(const FourBitLinear& linear, int64_t tokens);

// Returns the bytes of the workspace for steps of up to `max_tokens` tokens. The weights may be
// without data.
size_t ExpansionBytes(const CudaWeights& weights, int64_t max_tokens);

// Makes the plans and takes the workspace, if the planner's steps may have kExpandFrom tokens.
absl::Status MakeExpansion(CudaWeights& weights, kernels::LinearPlanner& planner);

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_WEIGHTS_EXPANSION_H_
