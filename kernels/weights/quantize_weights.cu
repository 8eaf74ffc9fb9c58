#include "kernels/device_util.cuh"
#include "kernels/fp8.cuh"
#include "kernels/weights/quantize_weights.h"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxCtas = 4096;
constexpr int kSide = 128;  // of a block

__device__ float Magnitude8(const float (&values)[8], float amax) {
#pragma unroll
  for (const float value : values) amax = fmaxf(amax, fabsf(value));
  return amax;
}

__device__ float RowMagnitude(const Bf16* row, int64_t stride) {
  float amax = 0;
  for (int64_t column = threadIdx.x * 8; column < stride; column += kThreads * 8) {
    float values[8];
    Load8(row + column, values);
    amax = Magnitude8(values, amax);
  }
  return amax;
}

__device__ void QuantizeRow(const Bf16* row, int64_t stride, float inverse, uint8_t* out) {
  for (int64_t column = threadIdx.x * 8; column < stride; column += kThreads * 8) {
    float values[8];
    Load8(row + column, values);
    *reinterpret_cast<uint2*>(out + column) = Fp8Codes8(values, inverse);
  }
}

__device__ uint8_t* OutRow(const QuantizeWeightsArgs& args, int64_t row) {
  return static_cast<uint8_t*>(args.out) + row * args.stride;
}

__global__ void ChannelKernel(QuantizeWeightsArgs args) {
  // two alternating sets, since rows may overlap in the CTA
  __shared__ float partials[2][kWarpSize];
  for (int64_t row = blockIdx.x, round = 0; row < args.rows; row += gridDim.x, ++round) {
    const Bf16* const from = args.source + row * args.stride;
    const float amax = BlockReduce<Max>(RowMagnitude(from, args.stride), partials[round % 2]);
    const float scale = Fp8Scale(amax);
    if (threadIdx.x == 0) args.scales[row] = scale;
    // the row is in the L1 cache
    QuantizeRow(from, args.stride, Fp8Inverse(scale), OutRow(args, row));
  }
}

// Magnitudes are not negative, so their bits order as they do, and an integer maximum is exact in
// any order. scales[0] starts at 0.
__global__ void TensorMagnitudeKernel(QuantizeWeightsArgs args) {
  __shared__ float partials[kWarpSize];
  float amax = 0;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    amax = fmaxf(amax, RowMagnitude(args.source + row * args.stride, args.stride));
  }
  amax = BlockReduce<Max>(amax, partials);
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<int*>(args.scales), __float_as_int(amax));
}

__global__ void TensorScaleKernel(float* scale) { *scale = Fp8Scale(*scale); }

__global__ void TensorQuantizeKernel(QuantizeWeightsArgs args) {
  const float inverse = Fp8Inverse(args.scales[0]);
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    QuantizeRow(args.source + row * args.stride, args.stride, inverse, OutRow(args, row));
  }
}

// A CTA processes a 128x128 block, kept in registers: sixteen threads per row, sixteen rows at a
// time.
__global__ void BlockKernel(QuantizeWeightsArgs args) {
  constexpr int kRowThreads = kSide / 8;
  constexpr int kRowsAtOnce = kThreads / kRowThreads;
  constexpr int kPasses = kSide / kRowsAtOnce;
  __shared__ float partials[kWarpSize];
  const int64_t column = int64_t{blockIdx.x} * kSide + threadIdx.x % kRowThreads * 8;
  const int64_t first = int64_t{blockIdx.y} * kSide + threadIdx.x / kRowThreads;
  float* const scale_row = args.scales + blockIdx.y * BlockScaleStride(args.stride);
  if (column >= args.stride) {  // the padding of a row of scales
    if (threadIdx.x == 0) scale_row[blockIdx.x] = 0;
    return;
  }
  float values[kPasses][8] = {};
  float amax = 0;
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int64_t row = first + i * kRowsAtOnce;
    if (row < args.rows) Load8(args.source + row * args.stride + column, values[i]);
    amax = Magnitude8(values[i], amax);
  }
  const float scale = Fp8Scale(BlockReduce<Max>(amax, partials));
  if (threadIdx.x == 0) scale_row[blockIdx.x] = scale;
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int64_t row = first + i * kRowsAtOnce;
    if (row >= args.rows) continue;
    *reinterpret_cast<uint2*>(OutRow(args, row) + column) = Fp8Codes8(values[i], Fp8Inverse(scale));
  }
}

cudaError_t LaunchTensor(const QuantizeWeightsArgs& args, int ctas, cudaStream_t stream) {
  const cudaError_t error = cudaMemsetAsync(args.scales, 0, sizeof(float), stream);
  if (error != cudaSuccess) return error;
  TensorMagnitudeKernel<<<ctas, kThreads, 0, stream>>>(args);
  TensorScaleKernel<<<1, 1, 0, stream>>>(args.scales);
  TensorQuantizeKernel<<<ctas, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchQuantizeWeights(const QuantizeWeightsArgs& args, cudaStream_t stream) {
  if (args.source == nullptr || args.out == nullptr || args.scales == nullptr ||
      !IsAligned16(args.source) || !IsAligned16(args.out) || args.rows < 1 ||
      args.rows > int64_t{65535} * kSide || args.stride < kColumnPadding ||
      args.stride % kColumnPadding != 0) {
    return cudaErrorInvalidValue;
  }
  const int ctas = static_cast<int>(args.rows < kMaxCtas ? args.rows : kMaxCtas);
  switch (args.scaling) {
    case WeightScaling::kNone:
      return cudaErrorInvalidValue;
    case WeightScaling::kTensor:
      return LaunchTensor(args, ctas, stream);
    case WeightScaling::kChannel:
      ChannelKernel<<<ctas, kThreads, 0, stream>>>(args);
      return cudaGetLastError();
    case WeightScaling::kBlock: {
      const dim3 grid(BlockScaleStride(args.stride), CeilDiv<int64_t>(args.rows, kSide));
      BlockKernel<<<grid, kThreads, 0, stream>>>(args);
      return cudaGetLastError();
    }
  }
  return cudaErrorInvalidValue;
}

}  // namespace millrace::kernels
