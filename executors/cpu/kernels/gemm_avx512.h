// Shared by the AVX-512 linears alone; everything is static, so that no other file can link to it.
#ifndef MILLRACE_EXECUTORS_CPU_KERNELS_GEMM_AVX512_H_
#define MILLRACE_EXECUTORS_CPU_KERNELS_GEMM_AVX512_H_

#include <immintrin.h>

#include "executors/cpu/kernels/kernels.h"

namespace millrace::cpu::avx512 {

static constexpr int kPrefetch = 6144;  // bytes ahead of the loads, in a tile's only pass

static inline __m512 LoadHalves(const uint8_t* halves) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(halves)));
}

// Some rows of a tile, and the weights to fetch meanwhile, so that loads never wait for memory.
struct Pass {
  int first;
  size_t ahead;  // bytes from the current weights to those to fetch
  int every;     // fetches at one step of so many
  int wait;      // steps until the next fetch
};

// Fetches into the second-level cache, which has room for far more lines on their way than the
// first. Each line is asked for once: what asks again takes a place among them as well.
template <int kBytes>
static inline void Fetch(const uint8_t* from) {
#pragma GCC unroll 8
  for (int i = 0; i < kBytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(from + i), _MM_HINT_T1);
  }
}

// Fetches what lies ahead of a step's weights, [kBytes], if it is the pass's turn.
template <int kBytes>
static inline void Prefetch(Pass& pass, const uint8_t* weights) {
  if (pass.wait-- > 0) return;
  pass.wait = pass.every - 1;
  if (kBytes < 64 && reinterpret_cast<uintptr_t>(weights) % 64 != 0) return;
  Fetch<kBytes>(weights + pass.ahead);
}

static inline const void* Row(const GemmTile& tile, int row) {
  return static_cast<const uint8_t*>(tile.x) + row * tile.x_stride;
}

// Begins to fetch where the sums will go: memory answers while they are being computed.
template <int kRows>
static inline void Begin(const GemmTile& tile, int first, __m512 (&sums)[kRows]) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    __builtin_prefetch(tile.out + (first + i) * tile.out_stride, 1);
    sums[i] = _mm512_setzero_ps();
  }
}

template <int kRows>
static inline void Finish(const GemmTile& tile, int first, const __m512 (&sums)[kRows]) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    float* out = tile.out + (first + i) * tile.out_stride;
    _mm512_storeu_ps(out, tile.add ? _mm512_add_ps(_mm512_loadu_ps(out), sums[i]) : sums[i]);
  }
}

// Instance::Run<rows>, where 1 <= rows <= kMost.
template <class Instance, int kMost>
static inline void RunRows(const GemmTile& tile, Pass pass, int rows) {
  if constexpr (kMost > 1) {
    if (rows < kMost) return RunRows<Instance, kMost - 1>(tile, pass, rows);
  }
  Instance::template Run<kMost>(tile, pass);
}

// Passes of up to Instance::kMaxRows rows over a tile, as equal as they can be. One pass
// fetches a little ahead of itself; several fetch the next tile among them, so that memory has no
// burst at each tile's first.
template <class Instance>
static inline void ForRows(const GemmTile& tile, size_t tile_bytes) {
  int passes = (tile.rows + Instance::kMaxRows - 1) / Instance::kMaxRows;
  const int every = passes;
  Pass pass{.first = 0, .ahead = passes == 1 ? kPrefetch : tile_bytes, .every = every, .wait = 0};
  for (; passes > 0; --passes, pass.wait = every - passes) {
    const int rows = (tile.rows - pass.first + passes - 1) / passes;
    RunRows<Instance, Instance::kMaxRows>(tile, pass, rows);
    pass.first += rows;
  }
}

}  // namespace millrace::cpu::avx512

#endif  // MILLRACE_EXECUTORS_CPU_KERNELS_GEMM_AVX512_H_
