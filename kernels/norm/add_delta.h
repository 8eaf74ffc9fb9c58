// Adds what a block made to the residual stream, normed (Gemma 2, arXiv:2408.00118; OLMo 2,
// arXiv:2501.00656) or as it is.
#ifndef MILLRACE_KERNELS_NORM_ADD_DELTA_H_
#define MILLRACE_KERNELS_NORM_ADD_DELTA_H_

#include <cuda_runtime_api.h>

#include "kernels/types.h"

namespace millrace::kernels {

// For each token, in float32: y = delta + bias, rounded; with a weight y = y / sqrt(mean(y^2) +
// epsilon) * weight; residual = fma(factor, y, residual).
//
// A row's bits depend only on that row and width. Each input is read once; `residual` is written. A
// NaN makes its own row NaN and affects no other. A norm that follows, and is all that reads the
// sum, is rms_norm.h's, which adds what is not normed itself.
struct AddDeltaArgs {
  float* residual;                // [tokens, width], dense, 16-byte aligned
  Product delta;                  // [tokens, width]
  const float* bias = nullptr;    // [width], 16-byte aligned, or null
  const float* weight = nullptr;  // [width], 16-byte aligned, or null
  float epsilon = 0;
  float factor = 1;
  int tokens;
  int width;  // 8 to 16384, a multiple of 8
};

// Returns cudaErrorInvalidValue, and launches nothing, if `args` violates the constraints above.
cudaError_t LaunchAddDelta(const AddDeltaArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_NORM_ADD_DELTA_H_
