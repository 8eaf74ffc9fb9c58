#include "kernels/elementwise/gate_heads.h"

#include <type_traits>

#include "kernels/activation_row.cuh"
#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/elementwise/gate.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

// kAdjusted: gates have scales or biases.
template <bool kAdjusted>
struct GatedHeads {
  GateHeadsArgs args;

  // What the gates of eight columns have for every token.
  struct Adjustment {
    ProductVector<true> gates;
    float bias[8];
  };
  struct None {};
  using Constants = std::conditional_t<kAdjusted, Adjustment, None>;

  // Returns the first column, in the product, of the gates of output columns [column, column + 8).
  __device__ int64_t GateColumn(int64_t column) const {
    const int head = static_cast<int>(column) / args.head_size;
    return column + int64_t{head + 1} * args.head_size;
  }

  __device__ Constants LoadConstants(int64_t column) const {
    Constants constants;
    if constexpr (kAdjusted) {
      const int64_t at = GateColumn(column);
      constants.gates.LoadConstants(args.qkv, at);
#pragma unroll
      for (float& bias : constants.bias) bias = 0;
      if (args.bias != nullptr) Load8(args.bias + at, constants.bias);
    }
    return constants;
  }

  __device__ void operator()(int64_t token, int64_t column, Constants constants,
                             float (&values)[8]) const {
    ProductVector<kAdjusted> vector;
    if constexpr (kAdjusted) vector = constants.gates;
    vector.Load(args.qkv, token, GateColumn(column));
    Load8(args.in + token * args.in_stride + column, values);
    float gates[8];
    vector.Values(gates);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (kAdjusted) gates[i] = __fadd_rn(gates[i], constants.bias[i]);
      values[i] = __fmul_rn(values[i], Sigmoid(gates[i]));
    }
  }
};

}  // namespace

cudaError_t LaunchGateHeads(const GateHeadsArgs& args, cudaStream_t stream) {
  const int64_t width = int64_t{args.heads} * args.head_size;
  if (args.tokens < 0 || args.heads < 1 || args.head_size < 8 || args.head_size % 8 != 0 ||
      !IsValid(args.qkv, 2 * width) || !IsAligned16(args.bias) || !IsValid(args.out, width) ||
      args.out.stride > kMaxRowWidth || args.in == nullptr || !IsAligned16(args.in) ||
      args.in_stride < width || args.in_stride % 8 != 0) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;
  const auto launch = [&](const auto& source) {
    return LaunchWriteRows(source, args.tokens, static_cast<int>(width), args.out, stream);
  };
  return IsScaled(args.qkv) || args.bias != nullptr ? launch(GatedHeads<true>{args})
                                                    : launch(GatedHeads<false>{args});
}

}  // namespace millrace::kernels
