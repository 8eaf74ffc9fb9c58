// The operations in which *_simd.inc is written, in AVX-512 (avx2_math.h has the same, with the
// same bits). Everything is static, so that no other file can link to it.
#ifndef MILLRACE_EXECUTORS_HOST_AVX512_MATH_H_
#define MILLRACE_EXECUTORS_HOST_AVX512_MATH_H_

#include <immintrin.h>

#include <cstdint>

namespace millrace::cpu::avx512 {

using Floats = __m512;  // [16]
using Mask = __mmask16;

static inline Floats Zeros() { return _mm512_setzero_ps(); }
static inline Floats All(float x) { return _mm512_set1_ps(x); }
static inline Floats Load(const float* from) { return _mm512_loadu_ps(from); }
static inline void Store(float* to, Floats x) { _mm512_storeu_ps(to, x); }

static inline Floats Add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
static inline Floats Sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
static inline Floats Mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
static inline Floats Div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
// a * b + c
static inline Floats Fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
// a * b - c
static inline Floats Fms(Floats a, Floats b, Floats c) { return _mm512_fmsub_ps(a, b, c); }
// c - a * b
static inline Floats Fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
// Returns a * b - c in even lanes, and a * b + c in odd ones.
static inline Floats FmaSubAdd(Floats a, Floats b, Floats c) { return _mm512_fmaddsub_ps(a, b, c); }
// Returns the larger operand, and the second one where either is a NaN.
static inline Floats Max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
static inline Floats Min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
static inline Floats Abs(Floats x) { return _mm512_abs_ps(x); }
// Rounds to the nearest whole number, ties to even.
static inline Floats Round(Floats x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// Returns x * 2^n for whole n from -126 to 127.
static inline Floats TimesPower(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }
// Lane 2i takes lane 2i + 1 and the other way round.
static inline Floats SwapPairs(Floats x) { return _mm512_permute_ps(x, 0xb1); }

// Compares by one of immintrin.h's _CMP_*.
template <int kPredicate>
static inline Mask Compare(Floats a, Floats b) {
  return _mm512_cmp_ps_mask(a, b, kPredicate);
}
// Returns a where a lane's mask is set, else b.
static inline Floats Choose(Mask mask, Floats a, Floats b) {
  return _mm512_mask_mov_ps(b, mask, a);
}

// Returns the lanes whose index is in [first, end).
static inline Mask Lanes(int first, int end) {
  if (first <= 0 && end >= 16) return 0xffff;
  if (first >= 16 || end <= 0) return 0;
  const unsigned from = first > 0 ? 0xffffu << first : 0xffffu;
  const unsigned to = end < 16 ? (1u << end) - 1 : 0xffffu;
  return static_cast<Mask>(from & to);
}

// Only the lanes of the mask are read or written; the others read as 0.
static inline Floats LoadMasked(const float* from, Mask mask) {
  return _mm512_maskz_loadu_ps(mask, from);
}
static inline void StoreMasked(float* to, Mask mask, Floats x) {
  _mm512_mask_storeu_ps(to, mask, x);
}
// Returns a bit for each lane.
static inline unsigned Bits(Mask mask) { return mask; }

// Returns the first eight floats from there on, or as many of them as `count` says, each in two
// lanes.
static inline Floats LoadTwice(const float* from, int count) {
  const auto has = static_cast<__mmask8>(Lanes(0, count));
  return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
                               _mm512_castps256_ps512(_mm256_maskz_loadu_ps(has, from)));
}

static inline Floats LoadHalves(const uint8_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

// Stores float16, rounded to the nearest.
static inline void StoreHalves(uint16_t* to, Floats x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// Stores BF16, rounded to the nearest, ties to even; a NaN stays one.
static inline void StoreBf16(uint16_t* to, Floats x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i whole =
      _mm512_mask_mov_epi32(rounded, Compare<_CMP_UNORD_Q>(x, x), _mm512_set1_epi32(0x7fc00000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(whole, 16)));
}

// Stores values of up to 127 as int8, rounded to the nearest, ties to even. Returns their sum.
static inline int StoreBytes(int8_t* to, Floats x) {
  const __m512i whole = _mm512_cvtps_epi32(x);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtsepi32_epi8(whole));
  return _mm512_reduce_add_epi32(whole);
}

static inline float ReduceAdd(Floats x) { return _mm512_reduce_add_ps(x); }
static inline float ReduceMax(Floats x) { return _mm512_reduce_max_ps(x); }

#include "executors/host/simd_math.inc"

}  // namespace millrace::cpu::avx512

#endif  // MILLRACE_EXECUTORS_HOST_AVX512_MATH_H_
