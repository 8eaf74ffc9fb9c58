// Collective operations of a search's block. All threads of the block call them. Shared memory is
// synchronized on entry and on return.
#ifndef MILLRACE_KERNELS_SAMPLING_BLOCK_COLLECTIVES_CUH_
#define MILLRACE_KERNELS_SAMPLING_BLOCK_COLLECTIVES_CUH_

#include "kernels/sampling/sample_internal.cuh"

namespace millrace::kernels::sampling {

inline constexpr int kSearchThreads = 512;
inline constexpr int kSearchWarps = kSearchThreads / kWarpSize;

__device__ inline Mass WarpInclusiveScan(Mass value) {
#pragma unroll
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const Mass left = __shfl_up_sync(kFullWarp, value, distance);
    if (threadIdx.x % kWarpSize >= distance) value += left;
  }
  return value;
}

// Returns the sum of the values of the threads before this one. `total` receives the sum over all
// threads.
__device__ __noinline__ Mass BlockExclusiveScan(Mass value, Mass* total) {
  __shared__ Mass partials[kSearchWarps];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const Mass inclusive = WarpInclusiveScan(value);
  if (lane == kWarpSize - 1) partials[warp] = inclusive;
  __syncthreads();
  const Mass warps = WarpInclusiveScan(lane < kSearchWarps ? partials[lane] : 0);
  *total = __shfl_sync(kFullWarp, warps, kSearchWarps - 1);
  const Mass before = __shfl_sync(kFullWarp, warps, max(warp - 1, 0));
  __syncthreads();
  return inclusive - value + (warp > 0 ? before : 0);
}

__device__ inline Key WarpMax(Key value) {
  const uint32_t high = static_cast<uint32_t>(value >> 32);
  const uint32_t highest = __reduce_max_sync(kFullWarp, high);
  const uint32_t low = high == highest ? static_cast<uint32_t>(value) : 0;
  return Key{highest} << 32 | __reduce_max_sync(kFullWarp, low);
}

__device__ inline Key BlockMax(Key value) {
  __shared__ Key partials[kSearchWarps];
  const int lane = threadIdx.x % kWarpSize;
  value = WarpMax(value);
  if (lane == 0) partials[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = WarpMax(lane < kSearchWarps ? partials[lane] : 0);
  __syncthreads();
  return value;
}

// Sorts `count` distinct keys in shared memory in descending order. `keys` has capacity for the
// next power of two.
__device__ inline void BlockSortDescending(Key* keys, int count) {
  constexpr int kParts = 4;                // threads that share a key
  if (count <= kSearchThreads / kParts) {  // a key's rank is the number of larger keys
    const int mine = threadIdx.x / kParts;
    const Key key = mine < count ? keys[mine] : 0;
    int place = 0;
    for (int i = threadIdx.x % kParts; i < count; i += kParts) place += keys[i] > key;
    place += __shfl_xor_sync(kFullWarp, place, 1);
    place += __shfl_xor_sync(kFullWarp, place, 2);
    __syncthreads();
    if (mine < count) keys[place] = key;
    __syncthreads();
    return;
  }
  int size = 2;
  while (size < count) size *= 2;
  for (int i = count + threadIdx.x; i < size; i += kSearchThreads) keys[i] = 0;
  __syncthreads();
  for (int run = 2; run <= size; run *= 2) {  // Batcher's bitonic network
    for (int distance = run / 2; distance > 0; distance /= 2) {
      for (int i = threadIdx.x; i < size / 2; i += kSearchThreads) {
        const int a = (i & ~(distance - 1)) * 2 | (i & (distance - 1));
        const int b = a + distance;
        const Key first = keys[a], second = keys[b];
        if ((first < second) == ((a & run) == 0)) keys[a] = second, keys[b] = first;
      }
      __syncthreads();
    }
  }
}

}  // namespace millrace::kernels::sampling

#endif  // MILLRACE_KERNELS_SAMPLING_BLOCK_COLLECTIVES_CUH_
