// The shared memory of a search.
#ifndef MILLRACE_KERNELS_SAMPLING_SEARCH_MEMORY_CUH_
#define MILLRACE_KERNELS_SAMPLING_SEARCH_MEMORY_CUH_

#include "kernels/sampling/range_bins.cuh"
#include "kernels/sampling/sample_internal.cuh"

namespace millrace::kernels::sampling {

inline constexpr int kCapacity = 2048;  // of the list

struct SearchMemory {
  uint32_t tile_bits[kMaxTiles];  // OrderedBits of the tile's largest logit
  Mass tile_mass[kMaxTiles];
  uint16_t selected[kMaxTiles];  // tiles, in any order
  union {
    Key list[kCapacity];
    struct {  // the halves of 64-bit sums: shared memory adds 32 bits natively
      uint32_t low[kBins];
      uint32_t high[kBins];
    } bins;
    struct {
      float mass[kMaxTiles];
      float largest[kMaxTiles];
    } tiles;
  };
  Mass before;
  int at;
  int count;
};

// The block's.
__device__ inline SearchMemory& Memory() {
  __shared__ SearchMemory memory;
  return memory;
}

}  // namespace millrace::kernels::sampling

#endif  // MILLRACE_KERNELS_SAMPLING_SEARCH_MEMORY_CUH_
