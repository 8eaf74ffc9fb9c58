#include "kernels/moe/combine.h"

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kInFlight = 4;  // slots whose loads are under way at a time

// Eight columns of a row of y.
struct Bf16Vector {
  uint4 raw;
  __device__ void Load(const void* from, int64_t at) {
    raw = LoadRaw8(static_cast<const Bf16*>(from) + at);
  }
  __device__ void Values(float (&to)[8]) const { Unpack8(raw, to); }
};
struct FloatVector {
  float4 low, high;
  __device__ void Load(const void* from, int64_t at) {
    const float4* const words =
        reinterpret_cast<const float4*>(static_cast<const float*>(from) + at);
    low = words[0], high = words[1];
  }
  __device__ void Values(float (&to)[8]) const { Unpack(low, high, to); }
};

__device__ bool HasRow(const CombineArgs& args, int64_t pair) {
  if (args.ids == nullptr) return true;
  const int expert = args.ids[pair] - args.first_expert;
  return expert >= 0 && expert < args.experts;
}

template <typename Vector>
__device__ void AddSlots(const CombineArgs& args, int64_t token, int column, float (&sum)[8]) {
  for (int first = 0; first < args.slots; first += kInFlight) {
    Vector rows[kInFlight];
    float scores[kInFlight];
    bool adds[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t pair = token * args.slots + first + i;
      adds[i] = first + i < args.slots && HasRow(args, pair);
      if (!adds[i]) continue;
      rows[i].Load(args.y, pair * args.y_stride + column);
      scores[i] = args.scores[pair];
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (!adds[i]) continue;
      float values[8];
      rows[i].Values(values);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] = __fmaf_rn(scores[i], values[j], sum[j]);
    }
  }
}

// The grid is (tokens, parts of a row); a thread has eight columns.
template <typename Vector>
__global__ void __launch_bounds__(kThreads) CombineKernel(CombineArgs args) {
  const int64_t token = blockIdx.x;
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * 8;
  ProductVector<true> shared;
  if (args.shared.data != nullptr && column < args.width) {
    shared.LoadConstants(args.shared, column);
  }
  AwaitPredecessor();
  if (column >= args.width) return;
  float* const residual = args.residual + token * args.width + column;
  float values[8], sum[8] = {};
  Load8(residual, values);
  AddSlots<Vector>(args, token, column, sum);
  if (args.shared.data != nullptr) {
    float gate = 1, factors[8];
    shared.Load(args.shared, token, column);
    shared.Values(factors);
    if (args.shared_logits != nullptr) {
      gate = 1 / (1 + expf(-args.shared_logits[token * args.shared_logit_stride]));
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] = __fmaf_rn(gate, factors[j], sum[j]);
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) values[j] = __fmaf_rn(args.factor, sum[j], values[j]);
  Store8(residual, values);
}

bool IsValid(const CombineArgs& args) {
  const bool rows = args.y != nullptr && IsAligned16(args.y) && args.y_stride >= args.width &&
                    args.y_stride % 8 == 0 && args.scores != nullptr &&
                    (args.y_type == Type::kBf16 || args.y_type == Type::kF32);
  const bool shared = args.shared.data == nullptr ? args.shared_logits == nullptr
                                                  : IsValid(args.shared, args.width);
  return rows && shared && args.residual != nullptr && IsAligned16(args.residual) &&
         args.tokens >= 0 && args.slots >= 1 && args.slots <= kMaxChosen && args.width >= 8 &&
         args.width % 8 == 0;
}

}  // namespace

cudaError_t LaunchCombine(const CombineArgs& args, cudaStream_t stream) {
  if (!IsValid(args)) return cudaErrorInvalidValue;
  if (args.tokens == 0) return cudaSuccess;
  const dim3 grid(args.tokens, CeilDiv(args.width / 8, kThreads));
  return LaunchDependent(
      args.y_type == Type::kBf16 ? CombineKernel<Bf16Vector> : CombineKernel<FloatVector>, grid,
      dim3(kThreads), 0, stream, args);
}

}  // namespace millrace::kernels
