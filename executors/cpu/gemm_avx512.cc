// Compiled with AVX-512 switched on: nothing here may instantiate code that other files share.
#include <immintrin.h>

#include "executors/cpu/kernel_sets.h"

namespace millrace::cpu::avx512 {
namespace {

constexpr int kMaxRows = 8;         // tokens that share one pass over a tile
constexpr int kPrefetch = 3072;     // bytes ahead of the loads, in a tile's only pass
constexpr int kQ4Bytes = 320;       // of a tile, a step of depth
constexpr int kQ8PairBytes = 1088;  // of a tile, two steps of depth

inline __m512i BroadcastDword(const int8_t* values) {
  return _mm512_set1_epi32(*reinterpret_cast<const int __attribute__((may_alias))*>(values));
}

inline __m512 BroadcastBits(uint32_t bits) {
  return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(bits)));
}

inline __m512 LoadHalves(const uint8_t* halves) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(halves)));
}

// Some rows of a tile, and what to fetch meanwhile: the loads never wait for memory then.
struct Pass {
  int first;
  const uint8_t* ahead;
  int lines;  // a step of depth
  bool soon;  // needed so soon that it must be in the first-level cache

  void Prefetch() {
    for (int i = 0; i < lines; ++i, ahead += 64) {
      if (soon) {
        _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
      } else {
        _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T1);
      }
    }
  }
};

// Begins to fetch where the sums will go: memory answers while they are being computed.
template <int kRows>
inline void PrefetchOut(const GemmTile& tile, int first) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) __builtin_prefetch(tile.out + (first + i) * tile.out_stride, 1);
}

inline const QuantizedBlock* Row(const GemmTile& tile, int row) {
  return reinterpret_cast<const QuantizedBlock*>(static_cast<const uint8_t*>(tile.x) +
                                                 row * tile.x_stride);
}

template <int kRows>
inline void Finish(const GemmTile& tile, int first, const __m512 (&sums)[kRows]) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    float* out = tile.out + (first + i) * tile.out_stride;
    _mm512_storeu_ps(out, tile.add ? _mm512_add_ps(_mm512_loadu_ps(out), sums[i]) : sums[i]);
  }
}

template <int kRows>
void Q4Rows(const GemmTile& tile, Pass pass) {
  PrefetchOut<kRows>(tile, pass.first);
  const __m512i low = _mm512_set1_epi8(15);
  const QuantizedBlock* x[kRows];
  __m512 sums[kRows];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    x[i] = Row(tile, pass.first + i);
    sums[i] = _mm512_setzero_ps();
  }
  const uint8_t* weights = tile.weights;
  for (int block = 0; block < tile.depth; ++block, weights += kQ4Bytes) {
    pass.Prefetch();
    __m512i w[8];
#pragma GCC unroll 16
    for (int j = 0; j < 4; ++j) {
      const __m512i both = _mm512_load_si512(weights + 64 * j);
      w[j] = _mm512_and_si512(both, low);
      w[j + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
    const __m512 scale = LoadHalves(weights + 256);
    const __m512 minimum = LoadHalves(weights + 288);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const QuantizedBlock& xb = x[i][block];
      __m512i dot = _mm512_setzero_si512();
#pragma GCC unroll 16
      for (int j = 0; j < 8; ++j) {
        dot = _mm512_dpbusd_epi32(dot, w[j], BroadcastDword(xb.values + 4 * j));
      }
      const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), scale);
      sums[i] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(xb.scale), sums[i]);
      sums[i] = _mm512_fmadd_ps(minimum, BroadcastBits(xb.correction), sums[i]);
    }
  }
  Finish(tile, pass.first, sums);
}

template <int kRows>
void Q8Rows(const GemmTile& tile, Pass pass) {
  PrefetchOut<kRows>(tile, pass.first);
  const QuantizedBlock* x[kRows];
  __m512 sums[kRows];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    x[i] = Row(tile, pass.first + i);
    sums[i] = _mm512_setzero_ps();
  }
  for (int block = 0; block < tile.depth; ++block) {
    const uint8_t* pair = tile.weights + static_cast<size_t>(block / 2) * kQ8PairBytes;
    const uint8_t* weights = pair + 64 + block % 2 * 512;
    pass.Prefetch();
    __m512i w[8];
#pragma GCC unroll 16
    for (int j = 0; j < 8; ++j) w[j] = _mm512_load_si512(weights + 64 * j);
    const __m512 scale = LoadHalves(pair + block % 2 * 32);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const QuantizedBlock& xb = x[i][block];
      __m512i dot = _mm512_set1_epi32(static_cast<int>(xb.correction));
#pragma GCC unroll 16
      for (int j = 0; j < 8; ++j) {
        dot = _mm512_dpbusd_epi32(dot, w[j], BroadcastDword(xb.values + 4 * j));
      }
      const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), scale);
      sums[i] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(xb.scale), sums[i]);
    }
  }
  Finish(tile, pass.first, sums);
}

template <bool kHalf, int kRows>
void FloatRows(const GemmTile& tile, Pass pass) {
  PrefetchOut<kRows>(tile, pass.first);
  constexpr int kStep = kHalf ? 32 : 64;
  const float* x[kRows];
  __m512 sums[kRows];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    x[i] = reinterpret_cast<const float*>(Row(tile, pass.first + i));
    sums[i] = _mm512_setzero_ps();
  }
  const uint8_t* weights = tile.weights;
  for (int k = 0; k < tile.depth; ++k, weights += kStep) {
    pass.Prefetch();
    const __m512 w = kHalf ? LoadHalves(weights) : _mm512_load_ps(weights);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      sums[i] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[i][k]), sums[i]);
    }
  }
  Finish(tile, pass.first, sums);
}

// Passes of up to kMaxRows rows over a tile, as equal as they can be. One pass fetches a little
// ahead of itself; several fetch the next tile among them, so that memory has no burst at each
// tile's first.
template <template <int> class Instance>
void ForRows(const GemmTile& tile, int step_bytes) {
  int passes = (tile.rows + kMaxRows - 1) / kMaxRows;
  Pass pass{.first = 0,
            .ahead = tile.weights + kPrefetch,
            .lines = (step_bytes + 63) / 64,
            .soon = passes == 1};
  if (passes > 1) {
    pass.ahead = tile.weights + static_cast<size_t>(tile.depth) * step_bytes;
    pass.lines = (pass.lines + passes - 1) / passes;
  }
  const size_t fetched = static_cast<size_t>(tile.depth) * pass.lines * 64;
  for (; passes > 0; --passes, pass.ahead += fetched) {
    const int rows = (tile.rows - pass.first + passes - 1) / passes;
    switch (rows) {
      case 1:
        Instance<1>::Run(tile, pass);
        break;
      case 2:
        Instance<2>::Run(tile, pass);
        break;
      case 3:
        Instance<3>::Run(tile, pass);
        break;
      case 4:
        Instance<4>::Run(tile, pass);
        break;
      case 5:
        Instance<5>::Run(tile, pass);
        break;
      case 6:
        Instance<6>::Run(tile, pass);
        break;
      case 7:
        Instance<7>::Run(tile, pass);
        break;
      case 8:
        Instance<8>::Run(tile, pass);
        break;
    }
    pass.first += rows;
  }
}

template <int kRows>
struct Q4 {
  static void Run(const GemmTile& tile, Pass pass) { Q4Rows<kRows>(tile, pass); }
};
template <int kRows>
struct Q8 {
  static void Run(const GemmTile& tile, Pass pass) { Q8Rows<kRows>(tile, pass); }
};
template <int kRows>
struct F32 {
  static void Run(const GemmTile& tile, Pass pass) { FloatRows<false, kRows>(tile, pass); }
};
template <int kRows>
struct F16 {
  static void Run(const GemmTile& tile, Pass pass) { FloatRows<true, kRows>(tile, pass); }
};

}  // namespace

void GemmQ4(const GemmTile& tile) { ForRows<Q4>(tile, kQ4Bytes); }
void GemmQ8(const GemmTile& tile) { ForRows<Q8>(tile, kQ8PairBytes / 2); }
void GemmF32(const GemmTile& tile) { ForRows<F32>(tile, 64); }
void GemmF16(const GemmTile& tile) { ForRows<F16>(tile, 32); }

}  // namespace millrace::cpu::avx512
