#include "kernels/norm/rms_norm.h"

#include "kernels/activation_row.cuh"
#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kMaxVectors = 4;

// A CTA a row, which stays in registers from its one reading to its writing.
template <int kVectors, bool kScaled>
__global__ void __launch_bounds__(kMaxThreads, kVectors == 1   ? 3
                                               : kVectors == 2 ? 2
                                                               : 1)
    RmsNormKernel(RmsNormArgs args) {
  __shared__ float sums[kWarpSize];
  const int64_t token = blockIdx.x;
  float* residual = args.residual + token * args.width;

  const float tensor_scale = TensorScale(args.out);

  float x[kVectors][8] = {};
  float weight[kVectors][8];
  ProductVector<kScaled> delta[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t column = RowColumn(0, i);
    if (column >= args.width) continue;
    Load8(args.weight + column, weight[i]);
    delta[i].LoadConstants(args.delta, column);
  }
  AwaitPredecessor();
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {  // all loads are under way before the first is waited for
    const int64_t column = RowColumn(0, i);
    if (column >= args.width) continue;
    Load8(residual + column, x[i]);
    if (args.delta.data != nullptr) delta[i].Load(args.delta, token, column);
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t column = RowColumn(0, i);
    if (column >= args.width || args.delta.data == nullptr) continue;
    float addend[8];
    delta[i].Values(addend);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[i][j] += addend[j];
    Store8(residual + column, x[i]);
  }

  float squares = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (const float value : x[i]) squares += value * value;
  }
  const float mean = BlockReduce<Add>(squares, sums) / args.width;
  const float inverse = 1.0f / sqrtf(mean + args.epsilon);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (RowColumn(0, i) < args.width) x[i][j] = x[i][j] * inverse * weight[i][j];
    }
  }
  WriteRow(x, tensor_scale, 0, token, gridDim.x, args.out);
}

}  // namespace

cudaError_t LaunchRmsNorm(const RmsNormArgs& args, cudaStream_t stream) {
  const bool delta_valid = args.delta.data == nullptr || IsValid(args.delta, args.width);
  if (args.tokens < 0 || args.width < 8 || args.width % 8 != 0 || !(args.epsilon >= 0) ||
      !IsValid(args.out, args.width) || args.out.stride > kMaxThreads * kMaxVectors * 8 ||
      !delta_valid || args.residual == nullptr || !IsAligned16(args.residual) ||
      args.weight == nullptr || !IsAligned16(args.weight)) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;

  // The threads of a row, and with them the sum's tree, follow from the width alone.
  const int vectors = static_cast<int>(args.out.stride / 8);
  const auto launch = [&](auto kernel, int per_thread) {
    const int threads = CeilDiv(CeilDiv(vectors, per_thread), kWarpSize) * kWarpSize;
    return LaunchDependent(kernel, args.tokens, threads, 0, stream, args);
  };
  const bool scaled = IsScaled(args.delta);
  if (vectors <= kMaxThreads) {
    return launch(scaled ? RmsNormKernel<1, true> : RmsNormKernel<1, false>, 1);
  }
  if (vectors <= 2 * kMaxThreads) {
    return launch(scaled ? RmsNormKernel<2, true> : RmsNormKernel<2, false>, 2);
  }
  return launch(scaled ? RmsNormKernel<4, true> : RmsNormKernel<4, false>, 4);
}

}  // namespace millrace::kernels
