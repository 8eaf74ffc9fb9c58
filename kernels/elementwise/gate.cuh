// The gate itself, for every kernel that ends in one.
#ifndef MILLRACE_KERNELS_ELEMENTWISE_GATE_CUH_
#define MILLRACE_KERNELS_ELEMENTWISE_GATE_CUH_

#include "kernels/device_util.cuh"
#include "kernels/elementwise/gated_activation.h"

namespace millrace::kernels {

// silu(gate) * up. The fast exponential and quotient err by less than 2^-17, far below what any
// output keeps; where exp(-x) overflows the quotient is -0, which is silu's limit. There is no sum
// of products in it that a compiler could contract in one kernel and not in another.
template <bool kScaled>
__device__ void Gate(const ProductVector<kScaled>& gate, const ProductVector<kScaled>& up,
                     float (&values)[8]) {
  float factors[8];
  gate.Values(values);
  up.Values(factors);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    values[i] = __fdividef(values[i], 1.0f + __expf(-values[i])) * factors[i];
  }
}

// Whether the kernel below was built and runs on GPUs of compute capability `major`.x.
bool HasGatedClusters(int major);

// Checked arguments with Scaling::kToken and at least one token.
cudaError_t LaunchGatedClusters(const GatedActivationArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ELEMENTWISE_GATE_CUH_
