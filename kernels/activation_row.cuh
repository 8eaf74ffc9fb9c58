// Writes rows, or parts of rows, as an Activation. Shared by every kernel whose output a linear
// consumes.
#ifndef MILLRACE_KERNELS_ACTIVATION_ROW_CUH_
#define MILLRACE_KERNELS_ACTIVATION_ROW_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/device_util.cuh"
#include "kernels/fp8.cuh"
#include "kernels/launch.cuh"
#include "kernels/types.h"

namespace millrace::kernels {

// Returns the column of the thread's i-th vector. A row lies in registers in vectors of 8 columns;
// the thread's i-th vector is number
//   first_vector + i * blockDim.x + threadIdx.x
// so that 16 neighbouring lanes hold the 128 columns of a scaling group.
__device__ inline int64_t RowColumn(int first_vector, int i) {
  return 8 * (first_vector + static_cast<int64_t>(i) * blockDim.x + threadIdx.x);
}

// Returns the largest magnitude. NaN is ignored, so that it appears in the codes and not in the
// scale.
__device__ inline float Amax(const float (&values)[8]) {
  float amax = 0;
#pragma unroll
  for (const float value : values) amax = fmaxf(amax, fabsf(value));
  return amax;
}

template <int kVectors>
__device__ float Amax(const float (&values)[kVectors][8]) {
  float amax = 0;
#pragma unroll
  for (const auto& vector : values) amax = fmaxf(amax, Amax(vector));
  return amax;
}

// Address of the 8 FP8 codes of columns [column, column + 8).
__device__ inline uint2* Codes(const Activation& out, int64_t token, int64_t column) {
  return reinterpret_cast<uint2*>(static_cast<uint8_t*>(out.data) + token * out.stride + column);
}

// Writes the vectors of `values` within out.stride, times `inverse`, as FP8.
template <int kVectors>
__device__ void WriteCodes(const float (&values)[kVectors][8], float inverse, int first_vector,
                           int64_t token, const Activation& out) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t column = RowColumn(first_vector, i);
    if (column < out.stride) *Codes(out, token, column) = Fp8Codes8(values[i], inverse);
  }
}

// Returns the scale of kTensor for WriteRow. Call it before any wait, to overlap the load.
__device__ inline float TensorScale(const Activation& out) {
  return out.scaling == Scaling::kTensor ? out.scales[0] : 1;
}

// Writes the vectors of `values` within out.stride to row `token` of `tokens`. Values past the
// row's width must be zeros. Called by all threads of the CTA, which holds the whole row if the
// scaling is kToken.
template <int kVectors>
__device__ void WriteRow(const float (&values)[kVectors][8], float tensor_scale, int first_vector,
                         int64_t token, int64_t tokens, const Activation& out) {
  if (out.type == Type::kBf16) {
    Bf16* row = static_cast<Bf16*>(out.data) + token * out.stride;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int64_t column = RowColumn(first_vector, i);
      if (column < out.stride) Store8(row + column, values[i]);
    }
    return;
  }

  float inverse = 0;
  if (out.scaling == Scaling::kTensor) {
    inverse = Fp8Inverse(tensor_scale);
  } else if (out.scaling == Scaling::kToken) {
    __shared__ float maxima[kWarpSize];
    const float scale = Fp8Scale(BlockReduce<Max>(Amax(values), maxima));
    if (threadIdx.x == 0) out.scales[token] = scale;
    inverse = Fp8Inverse(scale);
  }
  if (out.scaling != Scaling::kTokenGroup) {
    WriteCodes(values, inverse, first_vector, token, out);
    return;
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t column = RowColumn(first_vector, i);
    const float scale = Fp8Scale(WarpReduce<Max, kColumnPadding / 8>(Amax(values[i])));
    if (column >= out.stride) continue;
    if (column % kColumnPadding == 0) {
      out.scales[column / kColumnPadding * PaddedTokens(tokens) + token] = scale;
    }
    *Codes(out, token, column) = Fp8Codes8(values[i], Fp8Inverse(scale));
  }
}

inline constexpr int kMaxRowThreads = 1024;
inline constexpr int kMaxRowWidth = 4 * kMaxRowThreads * 8;
inline constexpr int kFewRows = 512;

// The grid is (tokens, parts of a row). `source(token, column, constants, values)` returns 8
// columns. `source.LoadConstants(column)` is called before the predecessor is awaited.
template <int kVectors, typename Source>
__global__ void __launch_bounds__(kMaxRowThreads)
    WriteRowsKernel(Source source, int width, Activation out) {
  const int64_t token = blockIdx.x;
  const int first_vector = blockIdx.y * blockDim.x * kVectors;
  const float tensor_scale = TensorScale(out);
  typename Source::Constants constants[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t column = RowColumn(first_vector, i);
    if (column < width) constants[i] = source.LoadConstants(column);
  }
  AwaitPredecessor();
  float values[kVectors][8] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t column = RowColumn(first_vector, i);
    if (column < width) source(token, column, constants[i], values[i]);
  }
  WriteRow(values, tensor_scale, first_vector, token, gridDim.x, out);
}

// Writes out[tokens, width] from `source`, a plain struct with device functions as above. `width`
// is a multiple of 8, out.stride at most kMaxRowWidth. A scale per token needs the row's maximum,
// so one CTA takes the whole row; otherwise several CTAs share it. With many rows, the CTAs are
// small and their threads take four vectors each if a thread holds nothing else, which maximizes
// the CTAs in flight per SM.
template <typename Source>
cudaError_t LaunchWriteRows(const Source& source, int tokens, int width, const Activation& out,
                            cudaStream_t stream) {
  constexpr int kPartThreads = 128;
  const int vectors = static_cast<int>(out.stride / 8);
  const auto launch = [&](auto kernel, int threads, int parts) {
    return LaunchDependent(kernel, dim3(tokens, parts), threads, 0, stream, source, width, out);
  };
  const auto row_threads = [&](int per_thread) {
    return CeilDiv(CeilDiv(vectors, per_thread), kWarpSize) * kWarpSize;
  };
  const bool many = tokens > kFewRows && std::is_empty_v<typename Source::Constants>;
  if (out.scaling != Scaling::kToken) {
    return many ? launch(WriteRowsKernel<4, Source>, kPartThreads,
                         CeilDiv(vectors, 4 * kPartThreads))
                : launch(WriteRowsKernel<1, Source>, kPartThreads, CeilDiv(vectors, kPartThreads));
  }
  if (vectors <= kMaxRowThreads && !many) {
    return launch(WriteRowsKernel<1, Source>, row_threads(1), 1);
  }
  if (vectors <= 2 * kMaxRowThreads && !many)
    return launch(WriteRowsKernel<2, Source>, row_threads(2), 1);
  return launch(WriteRowsKernel<4, Source>, row_threads(4), 1);
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ACTIVATION_ROW_CUH_
