#include "kernels/recurrent/gated_norm.h"

#include "kernels/activation_row.cuh"
#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/elementwise/gate.cuh"
#include "kernels/norm/norm_rule.cuh"

namespace millrace::kernels {
namespace {

constexpr int kHeadSize = 128;
constexpr int kHeadLanes = kHeadSize / 8;
constexpr int kMaxHeads = kMaxRowThreads / kHeadLanes;  // one vector a thread

// Sums over the 16 lanes of a head. Of an odd number of heads the last one has half a warp, so that
// only its own lanes take part.
__device__ inline float SumOfHead(float value) {
  const unsigned lanes = 0xffffU << (threadIdx.x % kWarpSize / kHeadLanes * kHeadLanes);
#pragma unroll
  for (int distance = kHeadLanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(lanes, value, distance);
  }
  return value;
}

template <bool kScaled>
struct GatedNormSource {
  GatedNormArgs args;

  struct Constants {
    float weight[8];
    ProductVector<kScaled> gate;
  };
  __device__ Constants LoadConstants(int64_t column) const {
    Constants constants;
    Load8(args.weight + column % kHeadSize, constants.weight);
    constants.gate.LoadConstants(args.gate, column);
    return constants;
  }
  __device__ void operator()(int64_t token, int64_t column, Constants constants,
                             float (&values)[8]) const {
    float gate[8];
    Load8(args.x + (token * args.heads) * kHeadSize + column, values);
    constants.gate.Load(args.gate, token, column);
    const float squares = SumOfHead(SumOfSquares(values));
    MultiplyBy(constants.weight, values);
    MultiplyBy(NormFactor(squares, 1.0f / kHeadSize, args.epsilon), values);
    constants.gate.Values(gate);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = Gate(gate[i], values[i]);
  }
};

}  // namespace

cudaError_t LaunchGatedNorm(const GatedNormArgs& args, cudaStream_t stream) {
  if (args.tokens < 0 || args.heads < 1 || args.heads > kMaxHeads) return cudaErrorInvalidValue;
  const int width = args.heads * kHeadSize;
  if (!IsValid(args.gate, width) || !IsValid(args.out, width) || args.out.stride > kMaxRowWidth ||
      args.x == nullptr || !IsAligned16(args.x) || args.weight == nullptr ||
      !IsAligned16(args.weight) || !(args.epsilon >= 0)) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;
  return IsScaled(args.gate)
             ? LaunchWriteRows(GatedNormSource<true>{args}, args.tokens, width, args.out, stream)
             : LaunchWriteRows(GatedNormSource<false>{args}, args.tokens, width, args.out, stream);
}

}  // namespace millrace::kernels
