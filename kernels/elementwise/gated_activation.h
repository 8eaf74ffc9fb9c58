// The gated activation of a feed-forward layer (SwiGLU: Shazeer, arXiv:2002.05202), fused with the
// quantization of what the down projection reads.
#ifndef MILLRACE_KERNELS_ELEMENTWISE_GATED_ACTIVATION_H_
#define MILLRACE_KERNELS_ELEMENTWISE_GATED_ACTIVATION_H_

#include <cuda_runtime_api.h>

#include "kernels/types.h"

namespace millrace::kernels {

// out = silu(gate) * up with silu(x) = x / (1 + exp(-x)), computed in fp32 and rounded once, to
// BF16 or to FP8 by any scaling (kernels/fp8.cuh). Columns [size, out.stride) of `out` get zeros.
//
// A row's bits depend on that row alone. Reads the input once. With Scaling::kToken a row is one
// CTA's, or (when there are more long rows than SMs) half a CTA's, which takes several, one after
// the other; on sm_90 up to 48 rows, and rows longer than 14,336, are each a cluster's.
struct GatedActivationArgs {
  Product gate_up;  // [tokens, 2 * size]
  int tokens;
  int size;               // 8 to 32768, a multiple of 8
  Activation out;         // [tokens, size], stride at most 32768
  bool portable = false;  // only kernels for all architectures: the bits are the same
  GateLayout layout = GateLayout::kHalves;
};

cudaError_t LaunchGatedActivation(const GatedActivationArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ELEMENTWISE_GATED_ACTIVATION_H_
