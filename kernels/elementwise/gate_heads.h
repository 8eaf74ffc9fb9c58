// The gates of attention's output (Qwen3-Next; arXiv:2505.06708), fused with the conversion to the
// output linear's input.
#ifndef MILLRACE_KERNELS_ELEMENTWISE_GATE_HEADS_H_
#define MILLRACE_KERNELS_ELEMENTWISE_GATE_HEADS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/types.h"

namespace millrace::kernels {

// Computes out = in * sigmoid(gate) with sigmoid(x) = 1 / (1 + exp(-x)) in float32, rounded once to
// BF16 or to FP8 with any scaling (kernels/fp8.cuh). The gates lie in the qkv linear's product,
// where each head of q is followed by those of the head's outputs (Rope::gates). Columns [heads *
// head_size, out.stride) of `out` are set to zero.
//
// A token's bits depend on that token alone. `in` and the gates are read once.
struct GateHeadsArgs {
  const Bf16* in;     // [tokens, heads * head_size] in rows of in_stride, 16-byte aligned
  int64_t in_stride;  // elements, a multiple of 8
  Product qkv;        // [tokens, at least heads * 2 * head_size]
  const float* bias;  // of the product's columns, 16-byte aligned, or null
  int tokens;
  int heads;
  int head_size;   // a multiple of 8
  Activation out;  // [tokens, heads * head_size], stride at most 32768; must not overlap `in`
};

cudaError_t LaunchGateHeads(const GateHeadsArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ELEMENTWISE_GATE_HEADS_H_
