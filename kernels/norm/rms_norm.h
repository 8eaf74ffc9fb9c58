// Root-mean-square norm of the residual stream (Zhang and Sennrich, arXiv:1910.07467), fused with
// the residual's addition before it and the quantization after it.
#ifndef MILLRACE_KERNELS_NORM_RMS_NORM_H_
#define MILLRACE_KERNELS_NORM_RMS_NORM_H_

#include <cuda_runtime_api.h>

#include "kernels/moe/combine.h"
#include "kernels/types.h"

namespace millrace::kernels {

// For each token, in float32: x = residual + delta or, with a factor or a bias, fma(delta_factor,
// delta + delta_bias, residual), the sum of delta and bias rounded first; x is stored back to
// `residual` if there is a delta; out = x / sqrt(mean(x^2) + epsilon) * weight, rounded once to
// BF16 or to FP8 with any scaling (see kernels/fp8.cuh for the rule). Columns [width, out.stride)
// of `out` are set to zero.
//
// A row's bits depend only on that row, width and out.stride: the tree of the sum is the same for
// every number of tokens. Each input is read once; `residual`, `out.data` and, for kToken and
// kTokenGroup, `out.scales` are written. A NaN makes its own row NaN and affects no other.
struct RmsNormArgs {
  float* residual;      // [tokens, width], dense, 16-byte aligned
  Product delta;        // [tokens, width]; null data: nothing is added, residual is only read
  const float* weight;  // [width], 16-byte aligned
  float epsilon;
  int tokens;
  int width;       // 8 to 16384, a multiple of 8
  Activation out;  // [tokens, width], stride at most 16384
  float delta_factor = 1;
  const float* delta_bias = nullptr;  // [width], 16-byte aligned, or null
  // In place of a delta: first does what LaunchCombine does, with the same bits. Its residual,
  // tokens and width are these; y is in BF16.
  const CombineArgs* mixture = nullptr;
};

// Returns whether a launch would accept the arguments.
bool IsValid(const RmsNormArgs& args);

// Returns cudaErrorInvalidValue, and launches nothing, if `args` violates the constraints above.
cudaError_t LaunchRmsNorm(const RmsNormArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_NORM_RMS_NORM_H_
