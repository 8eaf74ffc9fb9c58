#include <cuda_fp16.h>

#include "kernels/device_util.cuh"
#include "kernels/weights/dequantize.h"
#include "kernels/weights/lattice_blocks.cuh"
#include "kernels/weights/stored_blocks.cuh"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxCtas = 4096;

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

// T is one of stored_blocks.cuh's types.
template <typename T>
struct Quantized {
  static __device__ void Load(const void* source, int64_t row, int64_t column, int64_t columns,
                              float (&to)[8]) {
    const int64_t element = row * columns + column;
    const uint8_t* const block =
        static_cast<const uint8_t*>(source) + element / T::kElements * T::kBytes;
    T::Load(block, static_cast<int>(element % T::kElements)).template Elements<T>(to);
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

template <typename T>
cudaError_t LaunchQuantized(const DequantizeArgs& args, cudaStream_t stream) {
  if (args.columns % T::kElements != 0) return cudaErrorInvalidValue;
  return Launch<Quantized<T>>(args, stream);
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
      return LaunchQuantized<Q8_0>(args, stream);
    case StoredType::kQ4_1:
      return LaunchQuantized<Q4_1>(args, stream);
    case StoredType::kQ4_0:
      return LaunchQuantized<Q4_0>(args, stream);
    case StoredType::kQ5_0:
      return LaunchQuantized<Q5_0>(args, stream);
    case StoredType::kQ5_1:
      return LaunchQuantized<Q5_1>(args, stream);
    case StoredType::kQ2K:
      return LaunchQuantized<Q2K>(args, stream);
    case StoredType::kQ3K:
      return LaunchQuantized<Q3K>(args, stream);
    case StoredType::kQ4K:
      return LaunchQuantized<Q4K>(args, stream);
    case StoredType::kQ5K:
      return LaunchQuantized<Q5K>(args, stream);
    case StoredType::kQ6K:
      return LaunchQuantized<Q6K>(args, stream);
    case StoredType::kIq4Nl:
      return LaunchQuantized<Iq4Nl>(args, stream);
    case StoredType::kMxfp4:
      return LaunchQuantized<Mxfp4>(args, stream);
    case StoredType::kInt4x32:
      return LaunchQuantized<Int4<32>>(args, stream);
    case StoredType::kInt4x128:
      return LaunchQuantized<Int4<128>>(args, stream);
    case StoredType::kIq4Xs:
      return LaunchQuantized<Iq4Xs>(args, stream);
    case StoredType::kIq3S:
      return LaunchQuantized<Iq3S>(args, stream);
    case StoredType::kIq3Xxs:
      return LaunchQuantized<Iq3Xxs>(args, stream);
    case StoredType::kIq2S:
      return LaunchQuantized<Iq2S>(args, stream);
    case StoredType::kIq2Xs:
      return LaunchQuantized<Iq2Xs>(args, stream);
    case StoredType::kIq2Xxs:
      return LaunchQuantized<Iq2Xxs>(args, stream);
    case StoredType::kIq1S:
      return LaunchQuantized<Iq1S>(args, stream);
    case StoredType::kIq1M:
      return LaunchQuantized<Iq1M>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace millrace::kernels
