// The arithmetic of a norm, shared by every kernel that computes one, with the same bits in all.
//
// The squares of 8 neighbouring columns are added in order, 32 such sums by a warp's butterfly (256
// columns), and those sums by another butterfly. Each column's result is (x * weight) * factor.
#ifndef MILLRACE_KERNELS_NORM_NORM_RULE_CUH_
#define MILLRACE_KERNELS_NORM_NORM_RULE_CUH_

#include <cuda_runtime.h>

#include "kernels/device_util.cuh"

namespace millrace::kernels {

__device__ inline float SumOfSquares(const float (&x)[8]) {
  float sum = 0;
#pragma unroll
  for (const float value : x) sum = fmaf(value, value, sum);
  return sum;
}

// Returns the sum of `parts` to each lane. Called by a full warp.
__device__ inline float SumOfParts(const float* parts, int count) {
  float sum = 0;
  for (int i = threadIdx.x % kWarpSize; i < count; i += kWarpSize) sum += parts[i];
  return WarpReduce<Add>(sum);
}

// Returns 1 / sqrt(squares * share + epsilon), where share is 1 / columns. The last two bits may be
// off.
__device__ inline float NormFactor(float squares, float share, float epsilon) {
  return rsqrtf(fmaf(squares, share, epsilon));
}

__device__ inline void MultiplyBy(const float (&factors)[8], float (&x)[8]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) x[j] *= factors[j];
}

__device__ inline void MultiplyBy(float factor, float (&x)[8]) {
#pragma unroll
  for (float& value : x) value *= factor;
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_NORM_NORM_RULE_CUH_
