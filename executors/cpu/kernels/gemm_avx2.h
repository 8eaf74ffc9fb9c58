// Shared by the AVX2 linears alone; everything is static, so that no other file can link to it.
#ifndef MILLRACE_EXECUTORS_CPU_KERNELS_GEMM_AVX2_H_
#define MILLRACE_EXECUTORS_CPU_KERNELS_GEMM_AVX2_H_

#include <immintrin.h>

#include "executors/cpu/kernels/kernels.h"

namespace millrace::cpu::avx2 {

static constexpr int kMaxRows = 4;      // tokens that share one pass over a tile
static constexpr int kLanes = 8;        // rows of the tile in a register: half of them
static constexpr int kPrefetch = 2048;  // bytes ahead of the loads

static inline __m256i LoadInts(const uint8_t* from) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}

static inline const void* Row(const GemmTile& tile, int row) {
  return static_cast<const uint8_t*>(tile.x) + row * tile.x_stride;
}

static inline void Prefetch(const uint8_t* from, int bytes) {
  for (int i = 0; i < bytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(from + kPrefetch + i), _MM_HINT_T0);
  }
}

static inline void Put(float* out, bool add, __m256 sum) {
  _mm256_storeu_ps(out, add ? _mm256_add_ps(_mm256_loadu_ps(out), sum) : sum);
}

template <class Instance>
static inline void ForRows(const GemmTile& tile) {
  int first = 0;
  for (; first + kMaxRows <= tile.rows; first += kMaxRows) {
    Instance::template Run<kMaxRows>(tile, first);
  }
  switch (tile.rows - first) {
    case 1:
      return Instance::template Run<1>(tile, first);
    case 2:
      return Instance::template Run<2>(tile, first);
    case 3:
      return Instance::template Run<3>(tile, first);
  }
}

}  // namespace millrace::cpu::avx2

#endif  // MILLRACE_EXECUTORS_CPU_KERNELS_GEMM_AVX2_H_
