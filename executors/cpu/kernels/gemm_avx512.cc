// Linears on quantized weights (see TileKind in kernels.h).
// Compiled with AVX-512 switched on: nothing here may instantiate code that other files share.
#include "executors/cpu/kernels/gemm_avx512.h"

#include <immintrin.h>

#include "executors/cpu/kernels/kernel_sets.h"

namespace millrace::cpu::avx512 {
namespace {

constexpr int kLanes = kTileRows;

inline __m512i BroadcastDword(const int8_t* values) {
  return _mm512_set1_epi32(*reinterpret_cast<const int __attribute__((may_alias))*>(values));
}

inline __m512i Bytes(char byte) { return _mm512_set1_epi8(byte); }

// ---- Codes of a block as unsigned bytes: Load's j-th has elements 4j to 4j + 3 of 16 rows ----

struct Nibbles {
  static constexpr int kBytes = 256;
  static __m512i Load(const uint8_t* from, int j) {
    const __m512i both = _mm512_load_si512(from + 64 * (j % 4));
    return _mm512_and_si512(j < 4 ? both : _mm512_srli_epi16(both, 4), Bytes(15));
  }
};

// Shifts left, or right where `by` is negative.
inline __m512i Shift(__m512i x, int by) {
  return by >= 0 ? _mm512_slli_epi32(x, static_cast<unsigned>(by))
                 : _mm512_srli_epi32(x, static_cast<unsigned>(-by));
}

// code | (upper & mask)
inline __m512i OrMasked(__m512i code, __m512i upper, __m512i mask) {
  return _mm512_ternarylogic_epi32(code, upper, mask, 0xf8);
}

struct FiveBits {
  static constexpr int kBytes = 320;
  static __m512i Load(const uint8_t* from, int j) {
    const __m512i fifth = _mm512_load_si512(from + 256);
    return OrMasked(Nibbles::Load(from, j), Shift(fifth, 4 - j), Bytes(16));
  }
};

struct SixBits {
  static constexpr int kBytes = 384;
  static __m512i Load(const uint8_t* from, int j) {
    const __m512i upper = _mm512_load_si512(from + 256 + 64 * (j / 4));
    return OrMasked(Nibbles::Load(from, j), Shift(upper, 4 - 2 * (j % 4)), Bytes(48));
  }
};

struct EightBits {
  static constexpr int kBytes = 512;
  static __m512i Load(const uint8_t* from, int j) { return _mm512_load_si512(from + 64 * j); }
};

template <const uint8_t (&kTable)[16]>
struct Codebook {
  static constexpr int kBytes = Nibbles::kBytes;
  static __m512i Load(const uint8_t* from, int j) {
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kTable)));
    return _mm512_shuffle_epi8(table, Nibbles::Load(from, j));
  }
};

// ---- The numbers of a group of blocks ----

template <bool kBf16>
struct PairScales {
  static constexpr bool kMinima = false;
  static constexpr bool kHalves = false;
  explicit PairScales(const uint8_t* header) : header_(header) {}
  __m512 Scale(int block) const {
    const uint8_t* from = header_ + 32 * block;
    if constexpr (!kBf16) return LoadHalves(from);
    const __m256i upper = _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(upper), 16));
  }
  const uint8_t* header_;
};

struct ScaleAndMinimum {
  static constexpr bool kMinima = true;
  static constexpr bool kHalves = false;
  explicit ScaleAndMinimum(const uint8_t* header) : header_(header) {}
  __m512 Scale(int) const { return LoadHalves(header_); }
  __m512 Minimum(int) const { return LoadHalves(header_ + 32); }
  const uint8_t* header_;
};

// The same of floats.
struct FloatScaleAndMinimum {
  static constexpr bool kMinima = true;
  static constexpr bool kHalves = false;
  explicit FloatScaleAndMinimum(const uint8_t* header) : header_(header) {}
  __m512 Scale(int) const { return _mm512_load_ps(header_); }
  __m512 Minimum(int) const { return _mm512_load_ps(header_ + 64); }
  const uint8_t* header_;
};

// Byte `at` of each dword, from 0 to 255, times `unit`.
inline __m512 ScaledByte(__m512i dwords, int at, __m512 unit) {
  const __m512i byte = _mm512_and_si512(_mm512_srli_epi32(dwords, static_cast<unsigned>(8 * at)),
                                        _mm512_set1_epi32(255));
  return _mm512_mul_ps(_mm512_cvtepi32_ps(byte), unit);
}

// Six-bit scales and minima of 8 blocks, unpacked as in ggml's get_scale_min_k4.
struct SuperScales {
  static constexpr bool kMinima = true;
  static constexpr bool kHalves = false;
  explicit SuperScales(const uint8_t* header) {
    const __m512 d = LoadHalves(header);
    const __m512 dmin = _mm512_sub_ps(_mm512_setzero_ps(), LoadHalves(header + 32));
    const __m512i a = _mm512_load_si512(header + 64);
    const __m512i b = _mm512_load_si512(header + 128);
    const __m512i c = _mm512_load_si512(header + 192);
    const __m512i late_scales = OrMasked(_mm512_and_si512(c, Bytes(15)), Shift(a, -2), Bytes(48));
    const __m512i late_minima =
        OrMasked(_mm512_and_si512(Shift(c, -4), Bytes(15)), Shift(b, -2), Bytes(48));
    for (int j = 0; j < 4; ++j) {
      Set(j, _mm512_and_si512(a, Bytes(63)), d, _mm512_and_si512(b, Bytes(63)), dmin);
      Set(j + 4, late_scales, d, late_minima, dmin);
    }
  }
  __m512 Scale(int block) const { return _mm512_load_ps(scales_[block]); }
  __m512 Minimum(int block) const { return _mm512_load_ps(minima_[block]); }

  void Set(int block, __m512i scales, __m512 d, __m512i minima, __m512 dmin) {
    _mm512_store_ps(scales_[block], ScaledByte(scales, block % 4, d));
    _mm512_store_ps(minima_[block], ScaledByte(minima, block % 4, dmin));
  }
  alignas(64) float scales_[8][kLanes];
  alignas(64) float minima_[8][kLanes];
};

// Scales of the 16 halves of 8 blocks: int8, or nibbles with minima in the high ones. d is divided
// by a power of two.
template <bool kWithMinima, int kDivisor = 1>
struct HalfScales {
  static constexpr bool kMinima = kWithMinima;
  static constexpr bool kHalves = true;
  explicit HalfScales(const uint8_t* header) {
    __m512 d = LoadHalves(header);
    if constexpr (kDivisor != 1) d = _mm512_mul_ps(d, _mm512_set1_ps(1.0f / kDivisor));
    const __m512 dmin = LoadHalves(header + 32);
    for (int half = 0; half < 16; ++half) {
      const __m512i bytes = _mm512_load_si512(header + 64 + 64 * (half / 4));
      if constexpr (kWithMinima) {
        const __m512i low = _mm512_and_si512(bytes, Bytes(15));
        const __m512i high = _mm512_and_si512(Shift(bytes, -4), Bytes(15));
        _mm512_store_ps(scales_[half], ScaledByte(low, half % 4, d));
        _mm512_store_ps(minima_[half], ScaledByte(high, half % 4, dmin));
      } else {
        const __m512i upper = _mm512_slli_epi32(bytes, static_cast<unsigned>(24 - 8 * (half % 4)));
        _mm512_store_ps(scales_[half],
                        _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srai_epi32(upper, 24)), d));
      }
    }
  }
  __m512 Scale(int half) const { return _mm512_load_ps(scales_[half]); }
  __m512 Minimum(int half) const { return _mm512_load_ps(minima_[half]); }

  alignas(64) float scales_[16][kLanes];
  alignas(64) float minima_[kWithMinima ? 16 : 1][kLanes];
};

// ---- Products ----

// Codes count from `kMiddle`, a power of two, or from 0.
template <int kMiddle>
inline __m512i MiddleTimes(int32_t offset) {
  if constexpr (kMiddle == 0) {
    return _mm512_setzero_si512();
  } else {
    return _mm512_set1_epi32(offset >> __builtin_ctz(128 / kMiddle));
  }
}

template <TileKind kKind, class Codes, class Header, int kMiddle>
struct Quantized {
  static constexpr TileLayout kLayout = kTileLayouts[static_cast<int>(kKind)];
  static_assert(kLayout.codes == Codes::kBytes);
  static constexpr int kMaxRows = Header::kHalves ? 8 : 12;  // registers for no more

  // Adds to `dots`, of kRows rows, the products of the weights' dwords [begin, begin + kDwords) of
  // a block. The rows take turns, so that none waits for its own last product.
  template <int kDwords, int kRows>
  static void Multiply(const uint8_t* weights, int begin, const QuantizedBlock* const (&x)[kRows],
                       int block, __m512i (&dots)[kRows]) {
#pragma GCC unroll 8
    for (int j = begin; j < begin + kDwords; ++j) {
      const __m512i w = Codes::Load(weights, j);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        dots[i] = _mm512_dpbusd_epi32(dots[i], w, BroadcastDword(x[i][block].values + 4 * j));
      }
    }
  }

  // sums += what block `at` of a group, [kLayout.codes], gives with that block of each row of x.
  template <int kRows>
  static void AddBlock(const uint8_t* weights, const Header& header, int at,
                       const QuantizedBlock* const (&x)[kRows], int block,
                       __m512 (&sums)[kRows]) requires(!Header::kHalves) {
    __m512i dots[kRows];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) dots[i] = MiddleTimes<kMiddle>(x[i][block].offset);
    Multiply<8>(weights, 0, x, block, dots);
    const __m512 scale = header.Scale(at);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[i]), scale);
      sums[i] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(x[i][block].scale), sums[i]);
    }
    if constexpr (Header::kMinima) {
      const __m512 minimum = header.Minimum(at);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        sums[i] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(x[i][block].scaled_sum), sums[i]);
      }
    }
  }

  template <int kRows>
  static void AddBlock(const uint8_t* weights, const Header& header, int at,
                       const QuantizedBlock* const (&x)[kRows], int block,
                       __m512 (&sums)[kRows]) requires(Header::kHalves) {
    __m512i dots[kRows];
    __m512 scaled[kRows];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) dots[i] = MiddleTimes<kMiddle>(x[i][block].first_offset);
    Multiply<4>(weights, 0, x, block, dots);
    const __m512 scale0 = header.Scale(2 * at);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      scaled[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[i]), scale0);
      dots[i] = MiddleTimes<kMiddle>(x[i][block].offset - x[i][block].first_offset);
    }
    Multiply<4>(weights, 4, x, block, dots);
    const __m512 scale1 = header.Scale(2 * at + 1);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const QuantizedBlock& values = x[i][block];
      scaled[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[i]), scale1, scaled[i]);
      if constexpr (Header::kMinima) {
        const int32_t second_offset = values.offset - values.first_offset;
        const __m512 sum0 = _mm512_set1_ps(static_cast<float>(-(values.first_offset >> 7)));
        const __m512 sum1 = _mm512_set1_ps(static_cast<float>(-(second_offset >> 7)));
        scaled[i] = _mm512_fnmadd_ps(header.Minimum(2 * at), sum0, scaled[i]);
        scaled[i] = _mm512_fnmadd_ps(header.Minimum(2 * at + 1), sum1, scaled[i]);
      }
      sums[i] = _mm512_fmadd_ps(scaled[i], _mm512_set1_ps(values.scale), sums[i]);
    }
  }

  template <int kRows>
  static void Run(const GemmTile& tile, Pass pass) {
    const QuantizedBlock* x[kRows];
    __m512 sums[kRows];
    Begin(tile, pass.first, sums);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      x[i] = static_cast<const QuantizedBlock*>(Row(tile, pass.first + i));
    }
    const uint8_t* weights = tile.weights;
    for (int first = 0; first < tile.depth; first += kLayout.group) {
      const Header header(weights);
      if (pass.first == 0) Fetch<kLayout.header>(weights + pass.ahead);
      weights += kLayout.header;
      for (int block = first; block < first + kLayout.group && block < tile.depth; ++block) {
        Prefetch<kLayout.codes>(pass, weights);
        AddBlock(weights, header, block - first, x, block, sums);
        weights += kLayout.codes;
      }
    }
    Finish(tile, pass.first, sums);
  }
};

template <TileKind kKind, class Codes, class Header, int kMiddle>
inline void Gemm(const GemmTile& tile) {
  constexpr TileLayout kLayout = kTileLayouts[static_cast<int>(kKind)];
  const size_t groups = (tile.depth + kLayout.group - 1) / kLayout.group;
  ForRows<Quantized<kKind, Codes, Header, kMiddle>>(
      tile, groups * kLayout.header + static_cast<size_t>(tile.depth) * kLayout.codes);
}

}  // namespace

void GemmQ4_0(const GemmTile& tile) { Gemm<TileKind::kQ4_0, Nibbles, PairScales<false>, 8>(tile); }
void GemmQ4_1(const GemmTile& tile) { Gemm<TileKind::kQ4_1, Nibbles, ScaleAndMinimum, 0>(tile); }
void GemmQ5_0(const GemmTile& tile) {
  Gemm<TileKind::kQ5_0, FiveBits, PairScales<false>, 16>(tile);
}
void GemmQ5_1(const GemmTile& tile) { Gemm<TileKind::kQ5_1, FiveBits, ScaleAndMinimum, 0>(tile); }
void GemmQ8_0(const GemmTile& tile) {
  Gemm<TileKind::kQ8_0, EightBits, PairScales<false>, 128>(tile);
}
void GemmIq4Nl(const GemmTile& tile) {
  Gemm<TileKind::kIq4Nl, Codebook<kIq4NlTable>, PairScales<false>, 128>(tile);
}
void GemmMxfp4(const GemmTile& tile) {
  Gemm<TileKind::kMxfp4, Codebook<kMxfp4Table>, PairScales<true>, 128>(tile);
}
void GemmInt4x32(const GemmTile& tile) {
  Gemm<TileKind::kInt4x32, Nibbles, FloatScaleAndMinimum, 0>(tile);
}
void GemmInt4x128(const GemmTile& tile) {
  Gemm<TileKind::kInt4x128, Nibbles, FloatScaleAndMinimum, 0>(tile);
}
void GemmQ2K(const GemmTile& tile) { Gemm<TileKind::kQ2K, Nibbles, HalfScales<true>, 0>(tile); }
void GemmQ3K(const GemmTile& tile) { Gemm<TileKind::kQ3K, Nibbles, HalfScales<false>, 4>(tile); }
void GemmQ4K(const GemmTile& tile) { Gemm<TileKind::kQ4K, Nibbles, SuperScales, 0>(tile); }
void GemmQ5K(const GemmTile& tile) { Gemm<TileKind::kQ5K, FiveBits, SuperScales, 0>(tile); }
void GemmQ6K(const GemmTile& tile) { Gemm<TileKind::kQ6K, SixBits, HalfScales<false>, 32>(tile); }
void GemmIq4Xs(const GemmTile& tile) {
  Gemm<TileKind::kIq4Xs, Codebook<kIq4NlTable>, HalfScales<false>, 128>(tile);
}
void GemmIq3S(const GemmTile& tile) {
  Gemm<TileKind::kIq3S, Codebook<kIq3STable>, HalfScales<false>, 128>(tile);
}
void GemmIq3Xxs(const GemmTile& tile) {
  Gemm<TileKind::kIq3Xxs, Codebook<kIq3XxsTable>, HalfScales<false, kIq3XxsDivisor>, 128>(tile);
}
void GemmIq2(const GemmTile& tile) {
  Gemm<TileKind::kIq2, Codebook<kIq2Table>, HalfScales<false, kIq2Divisor>, 128>(tile);
}
void GemmIq1(const GemmTile& tile) {
  Gemm<TileKind::kIq1, Codebook<kIq1Table>, HalfScales<false, kIq1Divisor>, 128>(tile);
}

}  // namespace millrace::cpu::avx512
