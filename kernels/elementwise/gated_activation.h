// The gated activation of a feed-forward layer (SwiGLU: Shazeer, arXiv:2002.05202), fused with the
// quantization of the down projection's input.
#ifndef MILLRACE_KERNELS_ELEMENTWISE_GATED_ACTIVATION_H_
#define MILLRACE_KERNELS_ELEMENTWISE_GATED_ACTIVATION_H_

#include <cuda_runtime_api.h>

#include "kernels/types.h"

namespace millrace::kernels {

// Computes out = silu(gate) * up with silu(x) = x / (1 + exp(-x)) in float32, rounded once to BF16
// or to FP8 with any scaling (kernels/fp8.cuh). Columns [size, out.stride) of `out` are set to
// zero.
//
// A row's bits depend on that row alone. The input is read once. With Scaling::kToken a row is
// processed by one CTA or, when there are more long rows than SMs, by half a CTA that takes several
// rows one after the other, or on sm_90 by halves of two CTAs. On sm_90 a cluster processes each
// row if there are at most 48 rows, or if rows are longer than 14,336.
struct GatedActivationArgs {
  Product gate_up;  // [tokens, 2 * size]
  int tokens;
  int size;               // 8 to 32768, a multiple of 8
  Activation out;         // [tokens, size], stride at most 32768
  bool portable = false;  // restricts the launch to kernels for all architectures; same bits
  GateLayout layout = GateLayout::kHalves;
};

cudaError_t LaunchGatedActivation(const GatedActivationArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ELEMENTWISE_GATED_ACTIVATION_H_
