// BF16 to what a linear consumes: FP8 by any scaling, or BF16 with its padding.
#ifndef MILLRACE_KERNELS_ELEMENTWISE_QUANTIZE_H_
#define MILLRACE_KERNELS_ELEMENTWISE_QUANTIZE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/types.h"

namespace millrace::kernels {

// out = in, quantized by kernels/fp8.cuh's rule; columns [width, out.stride) get zeros. A row's
// bits depend on that row alone. Reads the input once.
struct QuantizeArgs {
  const Bf16* in;     // [tokens, width] in rows of in_stride, 16-byte aligned
  int64_t in_stride;  // elements, a multiple of 8
  int tokens;
  int width;       // 8 to 32768, a multiple of 8
  Activation out;  // [tokens, width], stride at most 32768; must not overlap `in`
};

cudaError_t LaunchQuantize(const QuantizeArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ELEMENTWISE_QUANTIZE_H_
