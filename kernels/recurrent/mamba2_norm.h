// The gate of a Mamba-2 layer's output and its norm by groups.
#ifndef MILLRACE_KERNELS_RECURRENT_MAMBA2_NORM_H_
#define MILLRACE_KERNELS_RECURRENT_MAMBA2_NORM_H_

#include <cuda_runtime_api.h>

#include "kernels/types.h"

namespace millrace::kernels {

inline constexpr int kMaxMamba2NormWidth = 8192;
inline constexpr int kMamba2NormStep = 32;  // what a group's width is a multiple of

// The outputs of a layer's heads, or of a rank's part of them.
struct Mamba2Outputs {
  const float* x;  // [tokens, width], dense, 16-byte aligned
  Product gate;    // [tokens, width]
  int tokens;
  int width;        // a multiple of group_width, at most kMaxMamba2NormWidth
  int group_width;  // a multiple of kMamba2NormStep
};

// The sums of squares of groups of which several ranks have a part: a record of a token has one
// number for each group of all ranks.
struct Mamba2RankSquares {
  const float* squares = nullptr;  // [tokens, ranks, record]; null: this rank has whole groups
  int ranks = 1;
  int record = 0;       // at least first_group and the rank's groups
  int first_group = 0;  // of all ranks' groups, the first that this rank has a part of
  int group_width = 0;  // of all ranks' parts together
};

// For each token and group of `group_width` columns, in float32: v = x * silu(gate), out = v /
// sqrt(mean(v^2) + epsilon) * weight, rounded once to BF16 or to FP8 with any scaling (see
// kernels/fp8.cuh for the rule). The gate comes before the norm, as Nemotron-H and Granite 4 have
// it; gated_norm.h has the other order.
//
// A group's values before quantization depend on that group alone; a row's bits on the row alone.
// The squares of 32 neighbouring columns are added first, by a fixed tree, then those sums by
// another, then those of ranks in ascending order. Each input is read once; `out.data` and, for
// kToken and kTokenGroup, `out.scales` are written.
struct Mamba2NormArgs {
  Mamba2Outputs outputs;
  const float* weight;  // [width], 16-byte aligned
  float epsilon;
  Activation out;  // [tokens, width]; columns up to the stride are set to zero
  Mamba2RankSquares ranks = {};
};

// Returns cudaErrorInvalidValue, and launches nothing, if `args` violates the constraints above.
cudaError_t LaunchMamba2Norm(const Mamba2NormArgs& args, cudaStream_t stream);

// Writes a rank's sums of squares, for LaunchMamba2Norm once all ranks' are gathered: those of v of
// its parts of groups, and zeros for the others.
struct Mamba2SquaresArgs {
  Mamba2Outputs outputs;
  int first_group;
  int record;
  float* squares;  // [tokens, record]
};

// As above.
cudaError_t LaunchMamba2Squares(const Mamba2SquaresArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_MAMBA2_NORM_H_
