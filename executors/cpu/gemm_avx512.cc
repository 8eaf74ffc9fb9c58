// Compiled with AVX-512 switched on: nothing here may instantiate code that other files share.
#include <immintrin.h>

#include "executors/cpu/kernel_sets.h"

namespace millrace::cpu::avx512 {
namespace {

constexpr int kMaxRows = 8;        // tokens that share one pass over a tile
constexpr int kPrefetch = 2048;    // bytes ahead of the loads, which never wait for memory then
constexpr int kQ4Bytes = 320;      // of a tile, a step of depth
constexpr int kQ8Bytes = 512;      // the same, without d
constexpr int kStreamingRows = 4;  // up to here memory is the limit, above the arithmetic

inline __m512i BroadcastDword(const int8_t* values) {
  return _mm512_set1_epi32(*reinterpret_cast<const int __attribute__((may_alias))*>(values));
}

inline __m512 BroadcastBits(uint32_t bits) {
  return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(bits)));
}

inline __m512 LoadHalves(const uint8_t* halves) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(halves)));
}

inline void Prefetch(const uint8_t* from, int bytes) {
  for (int i = 0; i < bytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(from + kPrefetch + i), _MM_HINT_T0);
  }
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
void Q4Rows(const GemmTile& tile, int first) {
  const __m512i low = _mm512_set1_epi8(15);
  const QuantizedBlock* x[kRows];
  __m512 sums[kRows];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    x[i] = Row(tile, first + i);
    sums[i] = _mm512_setzero_ps();
  }
  const uint8_t* weights = tile.weights;
  for (int block = 0; block < tile.depth; ++block, weights += kQ4Bytes) {
    if (kRows <= kStreamingRows) Prefetch(weights, kQ4Bytes);
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
  Finish(tile, first, sums);
}

template <int kRows>
void Q8Rows(const GemmTile& tile, int first) {
  const QuantizedBlock* x[kRows];
  __m512 sums[kRows];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    x[i] = Row(tile, first + i);
    sums[i] = _mm512_setzero_ps();
  }
  const uint8_t* weights = tile.weights;
  const uint8_t* scales = tile.weights + static_cast<size_t>(tile.depth) * kQ8Bytes;
  for (int block = 0; block < tile.depth; ++block, weights += kQ8Bytes, scales += 32) {
    if (kRows <= kStreamingRows) Prefetch(weights, kQ8Bytes);
    __m512i w[8];
#pragma GCC unroll 16
    for (int j = 0; j < 8; ++j) w[j] = _mm512_load_si512(weights + 64 * j);
    const __m512 scale = LoadHalves(scales);
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
  Finish(tile, first, sums);
}

template <bool kHalf, int kRows>
void FloatRows(const GemmTile& tile, int first) {
  constexpr int kStep = kHalf ? 32 : 64;
  const float* x[kRows];
  __m512 sums[kRows];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    x[i] = reinterpret_cast<const float*>(Row(tile, first + i));
    sums[i] = _mm512_setzero_ps();
  }
  const uint8_t* weights = tile.weights;
  for (int k = 0; k < tile.depth; ++k, weights += kStep) {
    if (kRows <= kStreamingRows) Prefetch(weights, kStep);
    const __m512 w = kHalf ? LoadHalves(weights) : _mm512_load_ps(weights);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      sums[i] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[i][k]), sums[i]);
    }
  }
  Finish(tile, first, sums);
}

// Calls a kernel's instance for 1 to kMaxRows rows.
template <template <int> class Instance>
void ForRows(const GemmTile& tile) {
  int row = 0;
  for (; row + kMaxRows <= tile.rows; row += kMaxRows) Instance<kMaxRows>::Run(tile, row);
  switch (tile.rows - row) {
    case 1:
      return Instance<1>::Run(tile, row);
    case 2:
      return Instance<2>::Run(tile, row);
    case 3:
      return Instance<3>::Run(tile, row);
    case 4:
      return Instance<4>::Run(tile, row);
    case 5:
      return Instance<5>::Run(tile, row);
    case 6:
      return Instance<6>::Run(tile, row);
    case 7:
      return Instance<7>::Run(tile, row);
  }
}

template <int kRows>
struct Q4 {
  static void Run(const GemmTile& tile, int row) { Q4Rows<kRows>(tile, row); }
};
template <int kRows>
struct Q8 {
  static void Run(const GemmTile& tile, int row) { Q8Rows<kRows>(tile, row); }
};
template <int kRows>
struct F32 {
  static void Run(const GemmTile& tile, int row) { FloatRows<false, kRows>(tile, row); }
};
template <int kRows>
struct F16 {
  static void Run(const GemmTile& tile, int row) { FloatRows<true, kRows>(tile, row); }
};

}  // namespace

void GemmQ4(const GemmTile& tile) { ForRows<Q4>(tile); }
void GemmQ8(const GemmTile& tile) { ForRows<Q8>(tile); }
void GemmF32(const GemmTile& tile) { ForRows<F32>(tile); }
void GemmF16(const GemmTile& tile) { ForRows<F16>(tile); }

}  // namespace millrace::cpu::avx512
