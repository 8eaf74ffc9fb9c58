// Exchanges between the lanes of a warp that bring what they hold into the order of memory.
#ifndef MILLRACE_KERNELS_TRANSPOSE_CUH_
#define MILLRACE_KERNELS_TRANSPOSE_CUH_

#include <cstdint>

#include "kernels/device_util.cuh"

namespace millrace::kernels {

// Transposes the 4 x 4 words of four neighbouring lanes: word i of lane j becomes word j of lane i.
__device__ inline void TransposeQuad(uint32_t (&words)[4]) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = threadIdx.x & distance;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & distance) continue;
      uint32_t &low = words[i], &high = words[i + distance];
      const uint32_t received = __shfl_xor_sync(kFullWarp, upper ? low : high, distance);
      (upper ? low : high) = received;
    }
  }
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_TRANSPOSE_CUH_
