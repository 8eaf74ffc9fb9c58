// Linears on quantized weights (see TileKind in kernels.h). Sums are integers until a block is
// whole, and from there on the operations of gemm_avx512.cc: the same bits. Compiled with AVX2
// switched on: nothing here may instantiate code that other files share.
#include "executors/cpu/kernels/gemm_avx2.h"

#include <immintrin.h>

#include "executors/cpu/kernels/kernel_sets.h"
#include "executors/host/avx2_math.h"

namespace millrace::cpu::avx2 {
namespace {

inline __m256i Bytes(char byte) { return _mm256_set1_epi8(byte); }

// ---- Codes of a block: w[j] has elements 4j to 4j + 3 of 8 rows, from a tile's 64-byte lines ----

struct Nibbles {
  static constexpr bool kSigned = false;
  static constexpr int kTogether = 8;  // products of 4 dwords that 16 bits hold, with 4 bits
  static void Load(const uint8_t* from, __m256i (&w)[8]) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m256i both = LoadInts(from + 64 * j);
      w[j] = _mm256_and_si256(both, Bytes(15));
      w[j + 4] = _mm256_and_si256(_mm256_srli_epi16(both, 4), Bytes(15));
    }
  }
};

// code | (upper & mask)
inline __m256i OrMasked(__m256i code, __m256i upper, char mask) {
  return _mm256_or_si256(code, _mm256_and_si256(upper, Bytes(mask)));
}

struct FiveBits {
  static constexpr bool kSigned = false;
  static constexpr int kTogether = 4;
  static void Load(const uint8_t* from, __m256i (&w)[8]) {
    Nibbles::Load(from, w);
    const __m256i fifth = LoadInts(from + 256);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const __m256i at = j < 4 ? _mm256_slli_epi32(fifth, 4 - j) : _mm256_srli_epi32(fifth, j - 4);
      w[j] = OrMasked(w[j], at, 16);
    }
  }
};

struct SixBits {
  static constexpr bool kSigned = false;
  static constexpr int kTogether = 2;
  static void Load(const uint8_t* from, __m256i (&w)[8]) {
    Nibbles::Load(from, w);
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const __m256i upper = LoadInts(from + 256 + 64 * j);
      w[4 * j] = OrMasked(w[4 * j], _mm256_slli_epi32(upper, 4), 48);
      w[4 * j + 1] = OrMasked(w[4 * j + 1], _mm256_slli_epi32(upper, 2), 48);
      w[4 * j + 2] = OrMasked(w[4 * j + 2], upper, 48);
      w[4 * j + 3] = OrMasked(w[4 * j + 3], _mm256_srli_epi32(upper, 2), 48);
    }
  }
};

// Signed values, as codes of 8 bits would not leave 16 bits room for two products.
struct EightBits {
  static constexpr bool kSigned = true;
  static constexpr int kTogether = 1;
  static void Load(const uint8_t* from, __m256i (&w)[8]) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) w[j] = _mm256_xor_si256(LoadInts(from + 64 * j), Bytes(-128));
  }
};

template <const uint8_t (&kTable)[16]>
struct Codebook {
  static constexpr bool kSigned = true;
  static constexpr int kTogether = 1;
  static void Load(const uint8_t* from, __m256i (&w)[8]) {
    Nibbles::Load(from, w);
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kTable)));
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      w[j] = _mm256_xor_si256(_mm256_shuffle_epi8(table, w[j]), Bytes(-128));
    }
  }
};

// ---- The numbers of a group of blocks, of the rows from `row` on ----

template <bool kBf16>
struct PairScales {
  static constexpr bool kMinima = false;
  static constexpr bool kHalves = false;
  PairScales(const uint8_t* header, int row) : header_(header + 2 * row) {}
  __m256 Scale(int block) const {
    const uint8_t* from = header_ + 32 * block;
    if constexpr (!kBf16) return LoadHalves8(from);
    const __m128i upper = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(upper), 16));
  }
  const uint8_t* header_;
};

struct ScaleAndMinimum {
  static constexpr bool kMinima = true;
  static constexpr bool kHalves = false;
  ScaleAndMinimum(const uint8_t* header, int row) : header_(header + 2 * row) {}
  __m256 Scale(int) const { return LoadHalves8(header_); }
  __m256 Minimum(int) const { return LoadHalves8(header_ + 32); }
  const uint8_t* header_;
};

// The same of floats.
struct FloatScaleAndMinimum {
  static constexpr bool kMinima = true;
  static constexpr bool kHalves = false;
  FloatScaleAndMinimum(const uint8_t* header, int row) : header_(header + 4 * row) {}
  __m256 Scale(int) const { return _mm256_castsi256_ps(LoadInts(header_)); }
  __m256 Minimum(int) const { return _mm256_castsi256_ps(LoadInts(header_ + 64)); }
  const uint8_t* header_;
};

// Byte `at` of each dword, from 0 to 255, times `unit`.
inline __m256 ScaledByte(__m256i dwords, int at, __m256 unit) {
  const __m256i byte = _mm256_and_si256(_mm256_srli_epi32(dwords, 8 * at), _mm256_set1_epi32(255));
  return _mm256_mul_ps(_mm256_cvtepi32_ps(byte), unit);
}

struct SuperScales {
  static constexpr bool kMinima = true;
  static constexpr bool kHalves = false;
  SuperScales(const uint8_t* header, int row) {
    const __m256 d = LoadHalves8(header + 2 * row);
    const __m256 dmin = _mm256_sub_ps(_mm256_setzero_ps(), LoadHalves8(header + 32 + 2 * row));
    const __m256i a = LoadInts(header + 64 + 4 * row);
    const __m256i b = LoadInts(header + 128 + 4 * row);
    const __m256i c = LoadInts(header + 192 + 4 * row);
    const __m256i scales[2] = {
        _mm256_and_si256(a, Bytes(63)),
        OrMasked(_mm256_and_si256(c, Bytes(15)), _mm256_srli_epi32(a, 2), 48)};
    const __m256i minima[2] = {_mm256_and_si256(b, Bytes(63)),
                               OrMasked(_mm256_and_si256(_mm256_srli_epi32(c, 4), Bytes(15)),
                                        _mm256_srli_epi32(b, 2), 48)};
    for (int i = 0; i < 8; ++i) {
      _mm256_store_ps(scales_[i], ScaledByte(scales[i / 4], i % 4, d));
      _mm256_store_ps(minima_[i], ScaledByte(minima[i / 4], i % 4, dmin));
    }
  }
  __m256 Scale(int block) const { return _mm256_load_ps(scales_[block]); }
  __m256 Minimum(int block) const { return _mm256_load_ps(minima_[block]); }

  alignas(32) float scales_[8][kLanes];
  alignas(32) float minima_[8][kLanes];
};

template <bool kWithMinima, int kDivisor = 1>
struct HalfScales {
  static constexpr bool kMinima = kWithMinima;
  static constexpr bool kHalves = true;
  HalfScales(const uint8_t* header, int row) {
    __m256 d = LoadHalves8(header + 2 * row);
    if constexpr (kDivisor != 1) d = _mm256_mul_ps(d, _mm256_set1_ps(1.0f / kDivisor));
    const __m256 dmin = LoadHalves8(header + 32 + 2 * row);
    for (int half = 0; half < 16; ++half) {
      const __m256i bytes = LoadInts(header + 64 + 64 * (half / 4) + 4 * row);
      if constexpr (kWithMinima) {
        const __m256i low = _mm256_and_si256(bytes, Bytes(15));
        const __m256i high = _mm256_and_si256(_mm256_srli_epi32(bytes, 4), Bytes(15));
        _mm256_store_ps(scales_[half], ScaledByte(low, half % 4, d));
        _mm256_store_ps(minima_[half], ScaledByte(high, half % 4, dmin));
      } else {
        const __m256i upper = _mm256_slli_epi32(bytes, 24 - 8 * (half % 4));
        _mm256_store_ps(scales_[half],
                        _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srai_epi32(upper, 24)), d));
      }
    }
  }
  __m256 Scale(int half) const { return _mm256_load_ps(scales_[half]); }
  __m256 Minimum(int half) const { return _mm256_load_ps(minima_[half]); }

  alignas(32) float scales_[16][kLanes];
  alignas(32) float minima_[kWithMinima ? 16 : 1][kLanes];
};

// ---- Products ----

// dot + the weights' first kDwords times as many values. Sums of 16 bits hold kTogether products
// of unsigned codes; a signed weight's sign goes to the value it meets.
template <class Codes, int kDwords>
inline __m256i Dot(__m256i dot, const __m256i* w, const int8_t* values) {
  const __m256i ones = _mm256_set1_epi16(1);
  constexpr int kTogether = Codes::kTogether < kDwords ? Codes::kTogether : kDwords;
#pragma GCC unroll 8
  for (int j = 0; j < kDwords; j += kTogether) {
    __m256i words = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = j; i < j + kTogether; ++i) {
      const __m256i x = _mm256_set1_epi32(
          *reinterpret_cast<const int __attribute__((may_alias))*>(values + 4 * i));
      const __m256i products =
          Codes::kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(w[i]), _mm256_sign_epi8(x, w[i]))
                         : _mm256_maddubs_epi16(w[i], x);
      words = i == j ? products : _mm256_add_epi16(words, products);
    }
    dot = _mm256_add_epi32(dot, _mm256_madd_epi16(words, ones));
  }
  return dot;
}

template <TileKind kKind, class Codes, class Header, int kMiddle>
struct Quantized {
  static constexpr TileLayout kLayout = kTileLayouts[static_cast<int>(kKind)];

  // Unsigned codes count from kMiddle, a power of two, or from 0.
  static __m256i MiddleTimes(int32_t offset) {
    if constexpr (kMiddle == 0 || Codes::kSigned) {
      return _mm256_setzero_si256();
    } else {
      return _mm256_set1_epi32(offset >> __builtin_ctz(128 / kMiddle));
    }
  }

  // sums += what this block of weights gives with one of activations.
  static __m256 AddBlock(const __m256i (&w)[8], const Header& header, int block,
                         const QuantizedBlock& x, __m256 sum) {
    const __m256 x_scale = _mm256_set1_ps(x.scale);
    if constexpr (!Header::kHalves) {
      const __m256i dot = Dot<Codes, 8>(MiddleTimes(x.offset), w, x.values);
      const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(dot), header.Scale(block));
      sum = _mm256_fmadd_ps(scaled, x_scale, sum);
      if constexpr (Header::kMinima) {
        sum = _mm256_fmadd_ps(header.Minimum(block), _mm256_set1_ps(x.scaled_sum), sum);
      }
    } else {
      const int32_t second_offset = x.offset - x.first_offset;
      const __m256i dot0 = Dot<Codes, 4>(MiddleTimes(x.first_offset), w, x.values);
      const __m256i dot1 = Dot<Codes, 4>(MiddleTimes(second_offset), w + 4, x.values + 16);
      __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(dot0), header.Scale(2 * block));
      scaled = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot1), header.Scale(2 * block + 1), scaled);
      if constexpr (Header::kMinima) {
        const __m256 sum0 = _mm256_set1_ps(static_cast<float>(-(x.first_offset >> 7)));
        const __m256 sum1 = _mm256_set1_ps(static_cast<float>(-(second_offset >> 7)));
        scaled = _mm256_fnmadd_ps(header.Minimum(2 * block), sum0, scaled);
        scaled = _mm256_fnmadd_ps(header.Minimum(2 * block + 1), sum1, scaled);
      }
      sum = _mm256_fmadd_ps(scaled, x_scale, sum);
    }
    return sum;
  }

  // Half of a tile's rows at a time: there are registers for no more.
  template <int kRows>
  static void RunHalf(const GemmTile& tile, int first_row, int lane) {
    const QuantizedBlock* x[kRows];
    __m256 sums[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      x[i] = static_cast<const QuantizedBlock*>(Row(tile, first_row + i));
      sums[i] = _mm256_setzero_ps();
    }
    const uint8_t* weights = tile.weights;
    for (int first = 0; first < tile.depth; first += kLayout.group) {
      const Header header(weights, lane);
      weights += kLayout.header;
      for (int block = first; block < first + kLayout.group && block < tile.depth; ++block) {
        if (lane == 0 && first_row == 0) Prefetch(weights, kLayout.codes);
        __m256i w[8];
        Codes::Load(weights + 4 * lane, w);
        weights += kLayout.codes;
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) {
          sums[i] = AddBlock(w, header, block - first, x[i][block], sums[i]);
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      Put(tile.out + (first_row + i) * tile.out_stride + lane, tile.add, sums[i]);
    }
  }

  template <int kRows>
  static void Run(const GemmTile& tile, int first_row) {
    RunHalf<kRows>(tile, first_row, 0);
    RunHalf<kRows>(tile, first_row, kLanes);
  }
};

}  // namespace

void GemmQ4_0(const GemmTile& tile) {
  ForRows<Quantized<TileKind::kQ4_0, Nibbles, PairScales<false>, 8>>(tile);
}
void GemmQ4_1(const GemmTile& tile) {
  ForRows<Quantized<TileKind::kQ4_1, Nibbles, ScaleAndMinimum, 0>>(tile);
}
void GemmQ5_0(const GemmTile& tile) {
  ForRows<Quantized<TileKind::kQ5_0, FiveBits, PairScales<false>, 16>>(tile);
}
void GemmQ5_1(const GemmTile& tile) {
  ForRows<Quantized<TileKind::kQ5_1, FiveBits, ScaleAndMinimum, 0>>(tile);
}
void GemmQ8_0(const GemmTile& tile) {
  ForRows<Quantized<TileKind::kQ8_0, EightBits, PairScales<false>, 128>>(tile);
}
void GemmIq4Nl(const GemmTile& tile) {
  ForRows<Quantized<TileKind::kIq4Nl, Codebook<kIq4NlTable>, PairScales<false>, 128>>(tile);
}
void GemmMxfp4(const GemmTile& tile) {
  ForRows<Quantized<TileKind::kMxfp4, Codebook<kMxfp4Table>, PairScales<true>, 128>>(tile);
}
void GemmInt4x32(const GemmTile& tile) {
  ForRows<Quantized<TileKind::kInt4x32, Nibbles, FloatScaleAndMinimum, 0>>(tile);
}
void GemmInt4x128(const GemmTile& tile) {
  ForRows<Quantized<TileKind::kInt4x128, Nibbles, FloatScaleAndMinimum, 0>>(tile);
}
void GemmQ2K(const GemmTile& tile) {
  ForRows<Quantized<TileKind::kQ2K, Nibbles, HalfScales<true>, 0>>(tile);
}
void GemmQ3K(const GemmTile& tile) {
  ForRows<Quantized<TileKind::kQ3K, Nibbles, HalfScales<false>, 4>>(tile);
}
void GemmQ4K(const GemmTile& tile) {
  ForRows<Quantized<TileKind::kQ4K, Nibbles, SuperScales, 0>>(tile);
}
void GemmQ5K(const GemmTile& tile) {
  ForRows<Quantized<TileKind::kQ5K, FiveBits, SuperScales, 0>>(tile);
}
void GemmQ6K(const GemmTile& tile) {
  ForRows<Quantized<TileKind::kQ6K, SixBits, HalfScales<false>, 32>>(tile);
}
void GemmIq4Xs(const GemmTile& tile) {
  ForRows<Quantized<TileKind::kIq4Xs, Codebook<kIq4NlTable>, HalfScales<false>, 128>>(tile);
}
void GemmIq3S(const GemmTile& tile) {
  ForRows<Quantized<TileKind::kIq3S, Codebook<kIq3STable>, HalfScales<false>, 128>>(tile);
}
void GemmIq3Xxs(const GemmTile& tile) {
  ForRows<
      Quantized<TileKind::kIq3Xxs, Codebook<kIq3XxsTable>, HalfScales<false, kIq3XxsDivisor>, 128>>(
      tile);
}
void GemmIq2(const GemmTile& tile) {
  ForRows<Quantized<TileKind::kIq2, Codebook<kIq2Table>, HalfScales<false, kIq2Divisor>, 128>>(
      tile);
}
void GemmIq1(const GemmTile& tile) {
  ForRows<Quantized<TileKind::kIq1, Codebook<kIq1Table>, HalfScales<false, kIq1Divisor>, 128>>(
      tile);
}

}  // namespace millrace::cpu::avx2
