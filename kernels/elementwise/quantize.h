// Converts BF16 to a linear's input: FP8 with any scaling, or BF16 with padding.
#ifndef MILLRACE_KERNELS_ELEMENTWISE_QUANTIZE_H_
#define MILLRACE_KERNELS_ELEMENTWISE_QUANTIZE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/types.h"

namespace millrace::kernels {

// Quantizes `in` to `out` by the rule of kernels/fp8.cuh. Columns [width, out.stride) are set to
// zero. A row's bits depend on that row alone. The input is read once.
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
