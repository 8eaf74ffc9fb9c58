#include "kernels/recurrent/mamba2_norm.h"

#include "kernels/activation_row.cuh"
#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/elementwise/gate.cuh"
#include "kernels/launch.cuh"
#include "kernels/norm/norm_rule.cuh"

namespace millrace::kernels {
namespace {

constexpr int kWarpColumns = 8 * kWarpSize;
constexpr int kMaxWidth = 8 * kMaxRowThreads;  // one vector a thread

// The grid is tokens. A group's columns are those of whole warps.
template <bool kScaled>
__global__ void __launch_bounds__(kMaxRowThreads)
    Mamba2NormKernel(const __grid_constant__ Mamba2NormArgs args) {
  __shared__ float parts[kMaxRowThreads / kWarpSize];
  const int64_t token = blockIdx.x;
  const int64_t column = RowColumn(0, 0);
  const bool inside = column < args.width;
  const float tensor_scale = TensorScale(args.out);
  float weight[8] = {};
  ProductVector<kScaled> gate;
  if (inside) {
    Load8(args.weight + column, weight);
    gate.LoadConstants(args.gate, column);
  }
  AwaitPredecessor();
  float values[1][8] = {};
  if (inside) {
    float gates[8];
    Load8(args.x + token * args.width + column, values[0]);
    gate.Load(args.gate, token, column);
    gate.Values(gates);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[0][i] = Gate(gates[i], values[0][i]);
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const float squares = WarpReduce<Add>(SumOfSquares(values[0]));
  if (threadIdx.x % kWarpSize == 0) parts[warp] = squares;
  __syncthreads();
  if (inside) {  // whole warps are
    const int group_warps = args.group_width / kWarpColumns;
    const float sum = SumOfParts(parts + warp / group_warps * group_warps, group_warps);
    MultiplyBy(weight, values[0]);
    MultiplyBy(NormFactor(sum, 1.0f / static_cast<float>(args.group_width), args.epsilon),
               values[0]);
  }
  WriteRow(values, tensor_scale, 0, token, args.tokens, args.out);
}

}  // namespace

cudaError_t LaunchMamba2Norm(const Mamba2NormArgs& args, cudaStream_t stream) {
  if (args.tokens < 0 || args.width < 1 || args.width > kMaxWidth || args.group_width < 1 ||
      args.group_width % kWarpColumns != 0 || args.width % args.group_width != 0 ||
      !IsValid(args.gate, args.width) || !IsValid(args.out, args.width) ||
      args.out.stride > kMaxWidth || args.x == nullptr || !IsAligned16(args.x) ||
      args.weight == nullptr || !IsAligned16(args.weight) || !(args.epsilon >= 0)) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;
  const int threads = CeilDiv(static_cast<int>(args.out.stride / 8), kWarpSize) * kWarpSize;
  return LaunchDependent(IsScaled(args.gate) ? Mamba2NormKernel<true> : Mamba2NormKernel<false>,
                         args.tokens, threads, 0, stream, args);
}

}  // namespace millrace::kernels
