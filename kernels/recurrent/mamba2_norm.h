// The gate of a Mamba-2 layer's output and its norm by groups.
#ifndef MILLRACE_KERNELS_RECURRENT_MAMBA2_NORM_H_
#define MILLRACE_KERNELS_RECURRENT_MAMBA2_NORM_H_

#include <cuda_runtime_api.h>

#include "kernels/types.h"

namespace millrace::kernels {

// For each token and group of `group_width` columns, in float32: v = x * silu(gate), out = v /
// sqrt(mean(v^2) + epsilon) * weight, rounded once to BF16 or to FP8 with any scaling (see
// kernels/fp8.cuh for the rule). The gate comes before the norm, as Nemotron-H and Granite 4 have
// it; gated_norm.h has the other order.
//
// A group's values before quantization depend on that group alone; a row's bits on the row alone.
// The sum of squares is the norms' (norm/norm_rule.cuh) over the group. Each input is read once;
// `out.data` and, for kToken and kTokenGroup, `out.scales` are written.
struct Mamba2NormArgs {
  const float* x;       // [tokens, width], dense, 16-byte aligned
  Product gate;         // [tokens, width]
  const float* weight;  // [width], 16-byte aligned
  float epsilon;
  int tokens;
  int width;        // a multiple of group_width, at most 8192
  int group_width;  // a multiple of 256
  Activation out;   // [tokens, width]; columns up to the stride are set to zero
};

// Returns cudaErrorInvalidValue, and launches nothing, if `args` violates the constraints above.
cudaError_t LaunchMamba2Norm(const Mamba2NormArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_MAMBA2_NORM_H_
