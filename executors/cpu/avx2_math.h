// Shared by the AVX2 files alone; everything is static, so that no other file can link to it.
//
// Sixteen floats are two registers, and every operation is the one of the AVX-512 files, in their
// order: both instruction sets give the same bits.
#ifndef MILLRACE_EXECUTORS_CPU_AVX2_MATH_H_
#define MILLRACE_EXECUTORS_CPU_AVX2_MATH_H_

#include <immintrin.h>

#include <cstdint>

namespace millrace::cpu::avx2 {

struct Floats {  // [16]
  __m256 lo;
  __m256 hi;
};

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
// The second operand where one is a NaN.
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
// a where a lane's mask is set, else b.
static inline Floats Choose(Floats mask, Floats a, Floats b) {
  return {_mm256_blendv_ps(b.lo, a.lo, mask.lo), _mm256_blendv_ps(b.hi, a.hi, mask.hi)};
}

// The lanes whose index is in [first, end).
static inline Floats Lanes(int first, int end) {
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
static inline Floats LoadMasked(const float* from, Floats mask) {
  return {_mm256_maskload_ps(from, _mm256_castps_si256(mask.lo)),
          _mm256_maskload_ps(from + 8, _mm256_castps_si256(mask.hi))};
}
static inline void StoreMasked(float* to, Floats mask, Floats x) {
  _mm256_maskstore_ps(to, _mm256_castps_si256(mask.lo), x.lo);
  _mm256_maskstore_ps(to + 8, _mm256_castps_si256(mask.hi), x.hi);
}
// A bit a lane.
static inline unsigned Bits(Floats mask) {
  return static_cast<unsigned>(_mm256_movemask_ps(mask.lo)) |
         static_cast<unsigned>(_mm256_movemask_ps(mask.hi)) << 8;
}

static inline __m256 LoadHalves8(const uint8_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
static inline Floats LoadHalves(const uint8_t* from) {
  return {LoadHalves8(from), LoadHalves8(from + 16)};
}

// In the order in which _mm512_reduce_add_ps adds.
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

// exp(x) as avx512_math.h's.
static inline __m256 Exp8(__m256 x) {
  const __m256 zero = _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_LT_OQ);
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504088896341f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145752f), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860677e-6f), r);
  __m256 p = _mm256_set1_ps(1.0f / 5040);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  const __m256i power =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_andnot_ps(zero, _mm256_mul_ps(p, _mm256_castsi256_ps(power)));
}
static inline Floats Exp(Floats x) { return {Exp8(x.lo), Exp8(x.hi)}; }

// cap * tanh(x / cap) as avx512_math.h's.
static inline Floats SoftCap(Floats x, float cap) {
  const Floats doubled = Mul(x, All(2.0f / cap));
  const Floats power = Exp(Min(All(88.0f), doubled));
  return Sub(All(cap), Div(All(2.0f * cap), Add(power, All(1.0f))));
}

}  // namespace millrace::cpu::avx2

#endif  // MILLRACE_EXECUTORS_CPU_AVX2_MATH_H_
