// The operations in which *_simd.inc is written, in AVX2: sixteen floats are two registers. The
// sums of a register's floats are added in AVX-512's order (avx512_math.h), so both give the same
// bits. Everything is static, so that no other file can link to it.
#ifndef MILLRACE_EXECUTORS_HOST_AVX2_MATH_H_
#define MILLRACE_EXECUTORS_HOST_AVX2_MATH_H_

#include <immintrin.h>

#include <cstdint>

namespace millrace::cpu::avx2 {

struct Floats {  // [16]
  __m256 lo;
  __m256 hi;
};
using Mask = Floats;  // a lane's bits are all the same

static inline Floats Zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline Floats All(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline Floats Load(const float* from) {
  return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}
static inline void Store(float* to, Floats x) {
  _mm256_storeu_ps(to, x.lo);
  _mm256_storeu_ps(to + 8, x.hi);
}

static inline Floats Add(Floats a, Floats b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
static inline Floats Sub(Floats a, Floats b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
static inline Floats Mul(Floats a, Floats b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
static inline Floats Div(Floats a, Floats b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
// a * b + c
static inline Floats Fma(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// a * b - c
static inline Floats Fms(Floats a, Floats b, Floats c) {
  return {_mm256_fmsub_ps(a.lo, b.lo, c.lo), _mm256_fmsub_ps(a.hi, b.hi, c.hi)};
}
// c - a * b
static inline Floats Fnma(Floats a, Floats b, Floats c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
// Returns a * b - c in even lanes, and a * b + c in odd ones.
static inline Floats FmaSubAdd(Floats a, Floats b, Floats c) {
  return {_mm256_fmaddsub_ps(a.lo, b.lo, c.lo), _mm256_fmaddsub_ps(a.hi, b.hi, c.hi)};
}
// Returns the larger operand, and the second one where either is a NaN.
static inline Floats Max(Floats a, Floats b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
static inline Floats Min(Floats a, Floats b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
static inline Floats Abs(Floats x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.lo), _mm256_andnot_ps(sign, x.hi)};
}
// Rounds to the nearest whole number, ties to even.
static inline Floats Round(Floats x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.lo, kNearest), _mm256_round_ps(x.hi, kNearest)};
}
// Returns x * 2^n for whole n from -126 to 127.
static inline Floats TimesPower(Floats x, Floats n) {
  const auto power = [](__m256 of) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(of), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  };
  return {_mm256_mul_ps(x.lo, power(n.lo)), _mm256_mul_ps(x.hi, power(n.hi))};
}
// Lane 2i takes lane 2i + 1 and the other way round.
static inline Floats SwapPairs(Floats x) {
  return {_mm256_permute_ps(x.lo, 0xb1), _mm256_permute_ps(x.hi, 0xb1)};
}

// Compares by one of immintrin.h's _CMP_*.
template <int kPredicate>
static inline Mask Compare(Floats a, Floats b) {
  return {_mm256_cmp_ps(a.lo, b.lo, kPredicate), _mm256_cmp_ps(a.hi, b.hi, kPredicate)};
}
// Returns a where a lane's mask is set, else b.
static inline Floats Choose(Mask mask, Floats a, Floats b) {
  return {_mm256_blendv_ps(b.lo, a.lo, mask.lo), _mm256_blendv_ps(b.hi, a.hi, mask.hi)};
}

// Returns the lanes whose index is in [first, end).
static inline Mask Lanes(int first, int end) {
  const __m256i lo = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i hi = _mm256_add_epi32(lo, _mm256_set1_epi32(8));
  const auto within = [first, end](__m256i lanes) {
    const __m256i from = _mm256_cmpgt_epi32(lanes, _mm256_set1_epi32(first - 1));
    const __m256i to = _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lanes);
    return _mm256_castsi256_ps(_mm256_and_si256(from, to));
  };
  return {within(lo), within(hi)};
}

// Only the lanes of the mask are read or written; the others read as 0.
static inline Floats LoadMasked(const float* from, Mask mask) {
  return {_mm256_maskload_ps(from, _mm256_castps_si256(mask.lo)),
          _mm256_maskload_ps(from + 8, _mm256_castps_si256(mask.hi))};
}
static inline void StoreMasked(float* to, Mask mask, Floats x) {
  _mm256_maskstore_ps(to, _mm256_castps_si256(mask.lo), x.lo);
  _mm256_maskstore_ps(to + 8, _mm256_castps_si256(mask.hi), x.hi);
}
// Returns a bit for each lane.
static inline unsigned Bits(Mask mask) {
  return static_cast<unsigned>(_mm256_movemask_ps(mask.lo)) |
         static_cast<unsigned>(_mm256_movemask_ps(mask.hi)) << 8;
}

// Returns the first eight floats from there on, or as many of them as `count` says, each in two
// lanes.
static inline Floats LoadTwice(const float* from, int count) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256 x = _mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes));
  return {_mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
          _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))};
}

static inline __m256 LoadHalves8(const uint8_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
static inline Floats LoadHalves(const uint8_t* from) {
  return {LoadHalves8(from), LoadHalves8(from + 16)};
}

// Stores float16, rounded to the nearest.
static inline void StoreHalves(uint16_t* to, Floats x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x.lo, kNearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8), _mm256_cvtps_ph(x.hi, kNearest));
}

// Stores BF16, rounded to the nearest, ties to even; a NaN stays one.
static inline void StoreBf16(uint16_t* to, Floats x) {
  const auto rounded = [](__m256 of) {
    const __m256i bits = _mm256_castps_si256(of);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(of, of, _CMP_UNORD_Q));
    const __m256i upper =
        _mm256_srli_epi32(_mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc00000), nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
  };
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), rounded(x.lo));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8), rounded(x.hi));
}

// Stores values of up to 127 as int8, rounded to the nearest, ties to even. Returns their sum.
static inline int StoreBytes(int8_t* to, Floats x) {
  const __m256i lo = _mm256_cvtps_epi32(x.lo);
  const __m256i hi = _mm256_cvtps_epi32(x.hi);
  const __m128i words_lo =
      _mm_packs_epi32(_mm256_castsi256_si128(lo), _mm256_extracti128_si256(lo, 1));
  const __m128i words_hi =
      _mm_packs_epi32(_mm256_castsi256_si128(hi), _mm256_extracti128_si256(hi, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(words_lo, words_hi));
  const __m256i eight = _mm256_add_epi32(lo, hi);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  return _mm_cvtsi128_si32(four);
}

// Returns the sum, added in the order of _mm512_reduce_add_ps.
static inline float ReduceAdd(Floats x) {
  const __m256 eight = _mm256_add_ps(x.hi, x.lo);
  const __m128 four = _mm_add_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
  const __m128 two = _mm_add_ps(four, _mm_shuffle_ps(four, four, 0x4e));
  return two[0] + two[1];
}
static inline float ReduceMax(Floats x) {
  const __m256 eight = _mm256_max_ps(x.hi, x.lo);
  const __m128 four = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
  const __m128 two = _mm_max_ps(four, _mm_shuffle_ps(four, four, 0x4e));
  return two[0] > two[1] ? two[0] : two[1];
}

#include "executors/host/simd_math.inc"

}  // namespace millrace::cpu::avx2

#endif  // MILLRACE_EXECUTORS_HOST_AVX2_MATH_H_
