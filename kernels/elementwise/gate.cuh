// The gate itself, for every kernel that ends in one.
#ifndef MILLRACE_KERNELS_ELEMENTWISE_GATE_CUH_
#define MILLRACE_KERNELS_ELEMENTWISE_GATE_CUH_

#include "kernels/device_util.cuh"
#include "kernels/elementwise/gated_activation.h"

namespace millrace::kernels {

// 8 columns of a row's gate and up.
template <bool kScaled>
struct GateVector {
  ProductVector<kScaled> gate, up;

  __device__ void LoadConstants(const GatedActivationArgs& args, int64_t column) {
    gate.LoadConstants(args.gate_up, column);
    up.LoadConstants(args.gate_up, args.size + column);
  }
  __device__ void Load(const GatedActivationArgs& args, int64_t token, int64_t column) {
    gate.Load(args.gate_up, token, column);
    up.Load(args.gate_up, token, args.size + column);
  }
};

// silu(gate) * up. The fast exponential and quotient err by less than 2^-17, far below what any
// output keeps; where exp(-x) overflows the quotient is -0, which is silu's limit. There is no sum
// of products in it that a compiler could contract in one kernel and not in another.
template <bool kScaled>
__device__ void Gate(const GateVector<kScaled>& vector, float (&values)[8]) {
  float factors[8];
  vector.gate.Values(values);
  vector.up.Values(factors);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    values[i] = __fdividef(values[i], 1.0f + __expf(-values[i])) * factors[i];
  }
}

// Kernel::kGatedClusters. Checked arguments with Scaling::kToken and at least one token.
cudaError_t LaunchGatedClusters(const GatedActivationArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ELEMENTWISE_GATE_CUH_
