// The gated activation's arithmetic, shared by every kernel that ends in it.
#ifndef MILLRACE_KERNELS_ELEMENTWISE_GATE_CUH_
#define MILLRACE_KERNELS_ELEMENTWISE_GATE_CUH_

#include "kernels/device_util.cuh"
#include "kernels/elementwise/gated_activation.h"

namespace millrace::kernels {

// Returns the first column, in a gated linear's output, of the gate and up values for output
// columns [column, column + 8). `column` is a multiple of 8.
__device__ inline int64_t GateColumn(GateLayout layout, int64_t column) {
  return layout == GateLayout::kInterleaved ? 2 * column : column;
}
__device__ inline int64_t UpColumn(GateLayout layout, int64_t size, int64_t column) {
  return layout == GateLayout::kInterleaved ? 2 * column + 8 : size + column;
}

// Eight columns of a row's gate and up.
template <bool kScaled>
struct GateVector {
  ProductVector<kScaled> gate, up;

  __device__ void LoadConstants(const GatedActivationArgs& args, int64_t column) {
    gate.LoadConstants(args.gate_up, GateColumn(args.layout, column));
    up.LoadConstants(args.gate_up, UpColumn(args.layout, args.size, column));
  }
  __device__ void Load(const GatedActivationArgs& args, int64_t token, int64_t column) {
    gate.Load(args.gate_up, token, GateColumn(args.layout, column));
    up.Load(args.gate_up, token, UpColumn(args.layout, args.size, column));
  }
};

// Returns 1 / (1 + exp(-x)) by the fast exponential and reciprocal. Their error is below 2^-17, far
// below the precision of any output. They flush denormals to zero; exp(-x) is negligible beside 1
// then, and the result is 0 for x below -87.
__device__ inline float Sigmoid(float x) {
  float exponential, sigmoid;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(exponential) : "f"(x * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(sigmoid) : "f"(1.0f + exponential));
  return sigmoid;
}

// Returns silu(gate) * up. Where exp(-x) overflows, silu is -0, its limit. The expression contains
// no sum of products that a compiler could contract in one kernel and not in another.
__device__ inline float Gate(float gate, float up) { return gate * Sigmoid(gate) * up; }

template <bool kScaled>
__device__ void Gate(const GateVector<kScaled>& vector, float (&values)[8]) {
  float factors[8];
  vector.gate.Values(values);
  vector.up.Values(factors);
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = Gate(values[i], factors[i]);
}

// Launches Kernel::kGatedClusters. `args` are valid, with Scaling::kToken and at least one token.
cudaError_t LaunchGatedClusters(const GatedActivationArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ELEMENTWISE_GATE_CUH_
