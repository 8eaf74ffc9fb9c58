#include "kernels/norm/add_delta.h"

#include "kernels/activation_row.cuh"
#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"
#include "kernels/norm/norm_rule.cuh"

namespace millrace::kernels {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kMaxVectors = 4;

// Norms `y`, which the CTA's threads hold as RowColumn says. Called by all of them.
template <int kVectors>
__device__ void NormRow(const AddDeltaArgs& args, const float (&weight)[kVectors][8],
                        float (&y)[kVectors][8]) {
  __shared__ float squares[kMaxThreads * kMaxVectors / kWarpSize];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int warps = blockDim.x / kWarpSize;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const float sum = WarpReduce<Add>(SumOfSquares(y[i]));
    if (lane == 0) squares[i * warps + warp] = sum;
  }
  __syncthreads();
  const float factor =
      NormFactor(SumOfParts(squares, kVectors * warps), 1.0f / args.width, args.epsilon);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (RowColumn(0, i) >= args.width) continue;
    MultiplyBy(weight[i], y[i]);
    MultiplyBy(factor, y[i]);
  }
}

// One CTA processes a row, which stays in registers from its only read to its write.
template <int kVectors>
__global__ void __launch_bounds__(kMaxThreads) AddDeltaKernel(AddDeltaArgs args) {
  const int64_t token = blockIdx.x;
  float* const residual = args.residual + token * args.width;
  float x[kVectors][8], y[kVectors][8] = {};
  float weight[kVectors][8];
  ProductVector<true> delta[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t column = RowColumn(0, i);
    if (column >= args.width) continue;
    if (args.weight != nullptr) Load8(args.weight + column, weight[i]);
    delta[i].LoadConstants(args.delta, column);
  }
  AwaitPredecessor();
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {  // issues all loads before it waits for the first
    const int64_t column = RowColumn(0, i);
    if (column >= args.width) continue;
    Load8(residual + column, x[i]);
    delta[i].Load(args.delta, token, column);
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t column = RowColumn(0, i);
    if (column >= args.width) continue;
    delta[i].Values(y[i]);
    if (args.bias == nullptr) continue;
    float bias[8];
    Load8(args.bias + column, bias);
#pragma unroll
    for (int j = 0; j < 8; ++j) y[i][j] = __fadd_rn(y[i][j], bias[j]);
  }
  if (args.weight != nullptr) NormRow(args, weight, y);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t column = RowColumn(0, i);
    if (column >= args.width) continue;
#pragma unroll
    for (int j = 0; j < 8; ++j) x[i][j] = __fmaf_rn(args.factor, y[i][j], x[i][j]);
    Store8(residual + column, x[i]);
  }
}

}  // namespace

cudaError_t LaunchAddDelta(const AddDeltaArgs& args, cudaStream_t stream) {
  if (args.tokens < 0 || args.width < 8 || args.width % 8 != 0 ||
      args.width > kMaxThreads * kMaxVectors * 8 || !IsValid(args.delta, args.width) ||
      !IsAligned16(args.bias) || !IsAligned16(args.weight) || !(args.epsilon >= 0) ||
      args.residual == nullptr || !IsAligned16(args.residual)) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;
  const int vectors = args.width / 8;
  const auto launch = [&](auto kernel, int per_thread) {
    const int threads = CeilDiv(CeilDiv(vectors, per_thread), kWarpSize) * kWarpSize;
    return LaunchDependent(kernel, args.tokens, threads, 0, stream, args);
  };
  if (vectors <= kMaxThreads) return launch(AddDeltaKernel<1>, 1);
  if (vectors <= 2 * kMaxThreads) return launch(AddDeltaKernel<2>, 2);
  return launch(AddDeltaKernel<4>, 4);
}

}  // namespace millrace::kernels
