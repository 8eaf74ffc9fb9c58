#include "kernels/norm/rms_norm.h"

#include "kernels/activation_row.cuh"
#include "kernels/arguments.h"
#include "kernels/device_util.cuh"

namespace millrace::kernels {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kMaxVectors = 4;

// A CTA a row, which stays in registers from its one reading to its writing.
template <int kVectors>
__global__ void __launch_bounds__(kMaxThreads) RmsNormKernel(RmsNormArgs args) {
  __shared__ float sums[kWarpSize];
  const int64_t token = blockIdx.x;
  float* residual = args.residual + token * args.width;

  float x[kVectors][8] = {};
  float weight[kVectors][8] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t column = RowColumn(0, i);
    if (column < args.width) {
      Load8(residual + column, x[i]);
      Load8(args.weight + column, weight[i]);
    }
  }
  if (args.delta.data != nullptr) {
    float delta[kVectors][8] = {};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int64_t column = RowColumn(0, i);
      if (column < args.width) Load8(args.delta, token, column, delta[i]);
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) x[i][j] += delta[i][j];
      const int64_t column = RowColumn(0, i);
      if (column < args.width) Store8(residual + column, x[i]);
    }
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
    for (int j = 0; j < 8; ++j) x[i][j] = x[i][j] * inverse * weight[i][j];
  }
  WriteRow(x, 0, token, gridDim.x, args.out);
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
    kernel<<<args.tokens, threads, 0, stream>>>(args);
    return cudaGetLastError();
  };
  if (vectors <= kMaxThreads) return launch(RmsNormKernel<1>, 1);
  if (vectors <= 2 * kMaxThreads) return launch(RmsNormKernel<2>, 2);
  return launch(RmsNormKernel<kMaxVectors>, kMaxVectors);
}

}  // namespace millrace::kernels
