// The shared memory of a search.
#ifndef MILLRACE_KERNELS_SAMPLING_SEARCH_MEMORY_CUH_
#define MILLRACE_KERNELS_SAMPLING_SEARCH_MEMORY_CUH_

#include "kernels/sampling/range_bins.cuh"
#include "kernels/sampling/sample_internal.cuh"

namespace millrace::kernels::sampling {

inline constexpr int kCapacity = 2048;  // of the list

// A token listed while a whole row is read, before the list is narrowed.
struct ListedToken {
  float logit;
  int32_t token;
};
inline constexpr int kMaxListed = 6144;
inline constexpr int kListedBytes = kMaxListed * sizeof(ListedToken);  // dynamic shared memory

// Logits low <= x < high.
struct Window {
  float low;
  float high;
};

struct SearchMemory {
  uint32_t tile_bits[kMaxTiles];  // OrderedBits of the tile's largest logit
  Mass tile_mass[kMaxTiles];
  uint16_t selected[kMaxTiles];  // tiles, in any order
  union {
    Key list[kCapacity];
    Mass bins[kBins];
    struct {
      int counts[kBins];
      float cut, slack;  // estimated number of sampled tokens above the cut, and its margin
      Window window;
    } guess;
    struct {
      float mass[kMaxTiles];
      float largest[kMaxTiles];
    } tiles;
  };
  Mass before;
  int at;
  int count;
};

// Returns the block's search memory.
__device__ inline SearchMemory& Memory() {
  __shared__ SearchMemory memory;
  return memory;
}

__device__ inline ListedToken* Listed() {
  extern __shared__ ListedToken listed[];
  return listed;
}

// Adds to a sum in shared memory as two 32-bit halves, since shared memory has native 32-bit
// atomics only.
__device__ inline void AddMass(Mass& to, Mass amount) {
  uint32_t* const halves = reinterpret_cast<uint32_t*>(&to);
  const uint32_t low = static_cast<uint32_t>(amount);
  uint32_t high = static_cast<uint32_t>(amount >> 32);
  if (atomicAdd(&halves[0], low) > ~low) ++high;  // carry
  if (high > 0) atomicAdd(&halves[1], high);
}

}  // namespace millrace::kernels::sampling

#endif  // MILLRACE_KERNELS_SAMPLING_SEARCH_MEMORY_CUH_
