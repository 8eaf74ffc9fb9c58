// Device code shared by the kernels: vector loads and stores, and reductions in a fixed order.
#ifndef MILLRACE_KERNELS_DEVICE_UTIL_CUH_
#define MILLRACE_KERNELS_DEVICE_UTIL_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/arguments.h"
#include "kernels/types.h"

namespace millrace::kernels {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kFullWarp = 0xffffffff;

template <typename T>
__host__ __device__ constexpr T CeilDiv(T a, T b) {
  return (a + b - 1) / b;
}

// ---- Eight elements at a time, 16-byte aligned ----

__device__ inline void Unpack(const float4& low, const float4& high, float (&to)[8]) {
  to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
  to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

__device__ inline void Load8(const float* from, float (&to)[8]) {
  const float4* words = reinterpret_cast<const float4*>(from);
  Unpack(words[0], words[1], to);
}

// Unpacks eight BF16 in memory order. A BF16 is the upper half of its float32.
__device__ inline void Unpack8(const uint4& raw, float (&to)[8]) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = __uint_as_float(words[i] << 16);
    to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000);
  }
}

__device__ inline uint4 LoadRaw8(const Bf16* from) { return *reinterpret_cast<const uint4*>(from); }

__device__ inline void Load8(const Bf16* from, float (&to)[8]) { Unpack8(LoadRaw8(from), to); }

__device__ inline void Store8(float* to, const float (&from)[8]) {
  reinterpret_cast<float4*>(to)[0] = make_float4(from[0], from[1], from[2], from[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(from[4], from[5], from[6], from[7]);
}

// Packs eight floats as BF16, rounded to nearest even.
__device__ inline uint4 Pack8(const float (&from)[8]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
    words[i] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ inline void Store8(Bf16* to, const float (&from)[8]) {
  *reinterpret_cast<uint4*>(to) = Pack8(from);
}

// Columns [column, column + 8) of a row of a Product, with scales or (kScaled = false) without.
// Loading and computing are separate steps, so that a thread issues all its loads before it waits
// for one. Channel scales are constant, so they are loaded before the predecessor is awaited.
template <bool kScaled>
struct ProductVector {
  uint4 data;
  float token_scale;
  float channel_scales[8];

  __device__ void LoadConstants(const Product& product, int64_t column) {
    if constexpr (kScaled) {
#pragma unroll
      for (float& scale : channel_scales) scale = 1;
      if (product.channel_scales != nullptr) Load8(product.channel_scales + column, channel_scales);
    }
  }

  __device__ void Load(const Product& product, int64_t token, int64_t column) {
    data = LoadRaw8(product.data + token * product.stride + column);
    if constexpr (kScaled) {
      token_scale = product.token_scales != nullptr ? product.token_scales[token] : 1;
    }
  }

  __device__ void Values(float (&to)[8]) const {
    Unpack8(data, to);
    if constexpr (kScaled) {
#pragma unroll
      for (int i = 0; i < 8; ++i) to[i] = to[i] * token_scale * channel_scales[i];
    }
  }
};

// ---- Copies of 16 bytes to shared memory, under way while their thread goes on ----

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void CopyAsync(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void CopyAsync(void* shared, const void* from) {
  CopyAsync(SharedAddress(shared), from);
}

// Commits the thread's copies since the last commit as a group.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all of the thread's groups except the last `kLeft`.
template <int kLeft>
__device__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// ---- Reductions: a butterfly in the warp, then one over the warps' results. The tree depends on
// the number of threads alone, and every thread gets the same bits. ----

struct Add {
  static constexpr float kIdentity = 0;
  __device__ float operator()(float a, float b) const { return a + b; }
};

// Maximum of magnitudes: values must be neither negative (including -0) nor NaN.
struct Max {
  static constexpr float kIdentity = 0;
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Reduces over aligned groups of `kLanes` lanes of a full warp: 2, 4, 8, 16 or 32.
template <typename Op, int kLanes = kWarpSize>
__device__ float WarpReduce(float value, Op op = {}) {
  if constexpr (std::is_same_v<Op, Max> && kLanes == kWarpSize) {
    // Non-negative floats order like their bits.
    return __uint_as_float(__reduce_max_sync(kFullWarp, __float_as_uint(value)));
  } else {
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      value = op(value, __shfl_xor_sync(kFullWarp, value, distance));
    }
    return value;
  }
}

// Reduces over a CTA of whole warps and is called by all its threads. `partials` is shared memory
// that no other code uses before the CTA's next barrier.
template <typename Op>
__device__ float BlockReduce(float value, float (&partials)[kWarpSize], Op op = {}) {
  const int lane = threadIdx.x % kWarpSize;
  value = WarpReduce(value, op);
  if (lane == 0) partials[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = lane < blockDim.x / kWarpSize ? partials[lane] : Op::kIdentity;
  return WarpReduce(value, op);
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_DEVICE_UTIL_CUH_
