#include "kernels/elementwise/gated_activation.h"

#include "kernels/activation_row.cuh"
#include "kernels/arguments.h"
#include "kernels/device_util.cuh"

namespace millrace::kernels {
namespace {

struct GatedSource {
  Product gate_up;
  int size;

  // The fast exponential and quotient err by less than 2^-17, far below what either output keeps.
  // Where exp(-x) overflows the quotient is -0, which is silu's limit.
  __device__ void operator()(int64_t token, int64_t column, float (&values)[8]) const {
    float up[8];
    Load8(gate_up, token, column, values);
    Load8(gate_up, token, size + column, up);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[i] = __fdividef(values[i], 1.0f + __expf(-values[i])) * up[i];
    }
  }
};

}  // namespace

cudaError_t LaunchGatedActivation(const GatedActivationArgs& args, cudaStream_t stream) {
  if (args.tokens < 0 || args.size < 8 || args.size % 8 != 0 || !IsValid(args.out, args.size) ||
      args.out.stride > kMaxRowWidth || !IsValid(args.gate_up, int64_t{2} * args.size)) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;
  return LaunchWriteRows(GatedSource{args.gate_up, args.size}, args.tokens, args.size, args.out,
                         stream);
}

}  // namespace millrace::kernels
