#include "kernels/device_util.cuh"
#include "kernels/fp8.cuh"
#include "kernels/weights/fill.h"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxCtas = 4096;

// SplitMix64 of a counter (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
// 2014). The upper 24 bits give a number uniform in [0, 1).
__device__ float Uniform(uint64_t seed, uint64_t counter) {
  uint64_t bits = seed + (counter + 1) * 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  bits ^= bits >> 31;
  return static_cast<float>(bits >> 40) * 0x1p-24f;
}

__device__ void StoreCodes8(uint8_t* to, const float (&values)[8]) {
  *reinterpret_cast<uint2*>(to) = Fp8Codes8(values, 1.0f);
}
template <typename T>
__device__ void StoreCodes8(T* to, const float (&values)[8]) {
  Store8(to, values);
}

template <typename Out>
__global__ void FillKernel(FillArgs args) {
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    Out* const out = static_cast<Out*>(args.out) + row * args.stride;
    for (int64_t column = threadIdx.x * 8; column < args.stride; column += blockDim.x * 8) {
      float values[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float drawn = Uniform(args.seed, row * args.columns + column + i);
        values[i] = column + i < args.columns ? fmaf(args.high - args.low, drawn, args.low) : 0;
      }
      StoreCodes8(out + column, values);
    }
  }
}

}  // namespace

cudaError_t LaunchFill(const FillArgs& args, cudaStream_t stream) {
  if (args.out == nullptr || !IsAligned16(args.out) || args.rows < 1 || args.columns < 1 ||
      args.stride < args.columns || args.stride % 16 != 0 || !(args.low <= args.high)) {
    return cudaErrorInvalidValue;
  }
  const int ctas = static_cast<int>(args.rows < kMaxCtas ? args.rows : kMaxCtas);
  switch (args.type) {
    case Type::kF32:
      FillKernel<float><<<ctas, kThreads, 0, stream>>>(args);
      break;
    case Type::kBf16:
      FillKernel<Bf16><<<ctas, kThreads, 0, stream>>>(args);
      break;
    case Type::kFp8:
      FillKernel<uint8_t><<<ctas, kThreads, 0, stream>>>(args);
      break;
  }
  return cudaGetLastError();
}

}  // namespace millrace::kernels
