// The norm of a gated delta layer's heads and the gate of its output.
#ifndef MILLRACE_KERNELS_RECURRENT_GATED_NORM_H_
#define MILLRACE_KERNELS_RECURRENT_GATED_NORM_H_

#include <cuda_runtime_api.h>

#include "kernels/types.h"

namespace millrace::kernels {

// For each token and head of 128 columns, in float32: out = x / sqrt(mean(x^2) + epsilon) * weight
// * silu(gate), rounded once to BF16 or to FP8 with any scaling (see kernels/fp8.cuh for the rule).
//
// A head's values before quantization depend on that head alone; a row's bits on the row alone.
// Each input is read once; `out.data` and, for kToken and kTokenGroup, `out.scales` are written.
struct GatedNormArgs {
  const float* x;       // [tokens, heads, 128], dense, 16-byte aligned
  Product gate;         // [tokens, heads * 128]
  const float* weight;  // [128], 16-byte aligned
  float epsilon;
  int tokens;
  int heads;       // 1 to 64
  Activation out;  // [tokens, heads * 128]; columns up to the stride are set to zero
};

// Returns cudaErrorInvalidValue, and launches nothing, if `args` violates the constraints above.
cudaError_t LaunchGatedNorm(const GatedNormArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_GATED_NORM_H_
