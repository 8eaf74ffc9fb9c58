// Shared by the AVX-512 files alone; everything is static, so that no other file can link to it.
#ifndef MILLRACE_EXECUTORS_CPU_AVX512_MATH_H_
#define MILLRACE_EXECUTORS_CPU_AVX512_MATH_H_

#include <immintrin.h>

namespace millrace::cpu::avx512 {

// exp(x) for x <= 88: 2^n * p(r), n = round(x / ln 2), |r| <= ln(2) / 2, p the Taylor polynomial of
// degree 7. Relative error under 3e-7 above -87; smaller x give 0, and -inf too. A NaN stays one.
static inline __m512 Exp(__m512 x) {
  const __mmask16 zero = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_LT_OQ);
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
  __m512 p = _mm512_set1_ps(1.0f / 5040);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 720));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_mask_mov_ps(_mm512_scalef_ps(p, n), zero, _mm512_setzero_ps());
}

// cap * tanh(x / cap), cap > 0, as cap * (1 - 2 / (exp(2x / cap) + 1)): within 2e-7 * cap. A NaN
// stays one.
static inline __m512 SoftCap(__m512 x, float cap) {
  const __m512 doubled = _mm512_mul_ps(x, _mm512_set1_ps(2.0f / cap));
  // min returns its second operand when one is a NaN.
  const __m512 power = Exp(_mm512_min_ps(_mm512_set1_ps(88.0f), doubled));
  const __m512 share =
      _mm512_div_ps(_mm512_set1_ps(2.0f * cap), _mm512_add_ps(power, _mm512_set1_ps(1.0f)));
  return _mm512_sub_ps(_mm512_set1_ps(cap), share);
}

}  // namespace millrace::cpu::avx512

#endif  // MILLRACE_EXECUTORS_CPU_AVX512_MATH_H_
