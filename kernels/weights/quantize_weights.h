// Quantizes BF16 weights to FP8 with scales, when a model is loaded.
#ifndef MILLRACE_KERNELS_WEIGHTS_QUANTIZE_WEIGHTS_H_
#define MILLRACE_KERNELS_WEIGHTS_QUANTIZE_WEIGHTS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/types.h"

namespace millrace::kernels {

struct QuantizeWeightsArgs {
  const Bf16* source;  // [rows, stride], 16-byte aligned; padding columns hold zeros
  int64_t rows;
  int64_t stride;         // of source and of out; a multiple of kColumnPadding
  void* out;              // FP8 [rows, stride], 16-byte aligned
  WeightScaling scaling;  // kTensor, kChannel or kBlock
  float* scales;          // written: 1, rows, or ceil(rows / 128) * BlockScaleStride(stride)
};

// With kTensor one scale covers all `rows`, so a fused weight must be assembled first. Scales and
// codes are rounded by the rule of kernels/fp8.cuh. The padding of block scales is set to zero.
cudaError_t LaunchQuantizeWeights(const QuantizeWeightsArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_WEIGHTS_QUANTIZE_WEIGHTS_H_
