#include <cuda_fp16.h>

#include "kernels/device_util.cuh"
#include "kernels/weights/dequantize.h"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxCtas = 4096;
constexpr int kBlock = 32;  // elements of a quantized block

// Load returns eight elements of `row` from `column` on, a multiple of 8, with zeros past the row's
// end.

template <typename T>
struct Dense {
  static __device__ void Load(const void* source, int64_t row, int64_t column, int64_t columns,
                              float (&to)[8]) {
    const T* const from = static_cast<const T*>(source) + row * columns;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      to[i] = column + i < columns ? static_cast<float>(from[column + i]) : 0.0f;
    }
  }
};

// Blocks are only 2-byte aligned.
struct Q8_0 {
  static constexpr int kBytes = 34;
  static __device__ void Load(const void* source, int64_t row, int64_t column, int64_t columns,
                              float (&to)[8]) {
    const int64_t element = row * columns + column;
    const uint8_t* const block = static_cast<const uint8_t*>(source) + element / kBlock * kBytes;
    const float scale = __half2float(*reinterpret_cast<const __half*>(block));
    const auto* codes = reinterpret_cast<const uint16_t*>(block + 2 + element % kBlock);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = codes[i];
      to[2 * i] = scale * static_cast<int8_t>(pair & 0xff);
      to[2 * i + 1] = scale * static_cast<int8_t>(pair >> 8);
    }
  }
};

// Blocks are 4-byte aligned. The low nibbles of a block's bytes are its first sixteen elements.
struct Q4_1 {
  static constexpr int kBytes = 20;
  static __device__ void Load(const void* source, int64_t row, int64_t column, int64_t columns,
                              float (&to)[8]) {
    const int64_t element = row * columns + column;
    const uint8_t* const block = static_cast<const uint8_t*>(source) + element / kBlock * kBytes;
    const float2 affine = __half22float2(*reinterpret_cast<const __half2*>(block));
    const int first = static_cast<int>(element % kBlock);
    const int shift = first < 16 ? 0 : 4;
    const auto* words = reinterpret_cast<const uint32_t*>(block + 4 + first % 16);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t code = words[i / 4] >> (8 * (i % 4) + shift) & 15;
      to[i] = fmaf(static_cast<float>(code), affine.x, affine.y);
    }
  }
};

template <typename Stored, typename Out>
__global__ void DequantizeKernel(DequantizeArgs args) {
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    Out* const out = static_cast<Out*>(args.out) + row * args.stride;
    for (int64_t column = threadIdx.x * 8; column < args.stride; column += blockDim.x * 8) {
      float values[8] = {};
      if (column < args.columns) {
        Stored::Load(args.source, row, column, args.columns, values);
      }
      Store8(out + column, values);
    }
  }
}

template <typename Stored>
cudaError_t Launch(const DequantizeArgs& args, cudaStream_t stream) {
  const int ctas = static_cast<int>(args.rows < kMaxCtas ? args.rows : kMaxCtas);
  if (args.type == Type::kBf16) {
    DequantizeKernel<Stored, Bf16><<<ctas, kThreads, 0, stream>>>(args);
  } else {
    DequantizeKernel<Stored, float><<<ctas, kThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchDequantize(const DequantizeArgs& args, cudaStream_t stream) {
  if (args.source == nullptr || args.out == nullptr || !IsAligned16(args.source) ||
      !IsAligned16(args.out) || args.rows < 1 || args.columns < 1 || args.stride < args.columns ||
      args.stride % 8 != 0 || (args.type != Type::kBf16 && args.type != Type::kF32)) {
    return cudaErrorInvalidValue;
  }
  switch (args.stored) {
    case StoredType::kF32:
      return Launch<Dense<float>>(args, stream);
    case StoredType::kF16:
      return Launch<Dense<__half>>(args, stream);
    case StoredType::kBf16:
      return Launch<Dense<Bf16>>(args, stream);
    case StoredType::kQ8_0:
      if (args.columns % kBlock != 0) return cudaErrorInvalidValue;
      return Launch<Q8_0>(args, stream);
    case StoredType::kQ4_1:
      if (args.columns % kBlock != 0) return cudaErrorInvalidValue;
      return Launch<Q4_1>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace millrace::kernels
