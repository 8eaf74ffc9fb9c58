// Compiled with AVX-512 switched on: nothing here may instantiate code that other files share.
#include <immintrin.h>

#include "executors/cpu/avx512_math.h"
#include "executors/cpu/kernel_sets.h"

namespace millrace::cpu::avx512 {
namespace {

constexpr int kLanes = 16;
constexpr int kSumRun = 64;  // registers that are added up in floats before doubles take over

inline __mmask16 Lanes(int left) {
  return left >= kLanes ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
}

inline __m512 LoadOrLowest(const float* x, int left) {
  return _mm512_mask_loadu_ps(_mm512_set1_ps(-__builtin_inff()), Lanes(left), x);
}

}  // namespace

void Maximum(const float* x, int count, float* value, int* index, bool* ok) {
  const __m512 infinity = _mm512_set1_ps(__builtin_inff());
  __m512 most = _mm512_set1_ps(-__builtin_inff());
  __mmask16 bad = 0;
  for (int i = 0; i < count; i += kLanes) {
    const __m512 v = LoadOrLowest(x + i, count - i);
    bad |= _mm512_mask_cmp_ps_mask(Lanes(count - i), _mm512_abs_ps(v), infinity, _CMP_NLT_UQ);
    most = _mm512_max_ps(v, most);
  }
  *ok = bad == 0;
  *value = _mm512_reduce_max_ps(most);
  *index = 0;
  const __m512 largest = _mm512_set1_ps(*value);
  for (int i = 0; i < count; i += kLanes) {
    const __mmask16 equal = _mm512_cmp_ps_mask(LoadOrLowest(x + i, count - i), largest, _CMP_EQ_OQ);
    if (equal != 0) {
      *index = i + __builtin_ctz(equal);
      return;
    }
  }
}

double ExpSum(const float* x, int count, float maximum, float factor, float* p) {
  const __m512 most = _mm512_set1_ps(maximum);
  const __m512 by = _mm512_set1_ps(factor);
  double total = 0;
  for (int begin = 0; begin < count; begin += kSumRun * kLanes) {
    const int end = begin + kSumRun * kLanes < count ? begin + kSumRun * kLanes : count;
    __m512 sum = _mm512_setzero_ps();
    for (int i = begin; i < end; i += kLanes) {
      const __m512 v = LoadOrLowest(x + i, count - i);
      const __m512 e = Exp(_mm512_mul_ps(_mm512_sub_ps(v, most), by));
      _mm512_mask_storeu_ps(p + i, Lanes(count - i), e);
      sum = _mm512_add_ps(sum, e);
    }
    total += static_cast<double>(_mm512_reduce_add_ps(sum));
  }
  return total;
}

int Select(const float* x, int count, float threshold, int32_t* indexes, int capacity) {
  const __m512 least = _mm512_set1_ps(threshold);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  int found = 0;
  for (int i = 0; i < count; i += kLanes) {
    const __mmask16 is = _mm512_mask_cmp_ps_mask(Lanes(count - i), LoadOrLowest(x + i, count - i),
                                                 least, _CMP_GE_OQ);
    if (is == 0) continue;
    const __m512i where =
        _mm512_maskz_compress_epi32(is, _mm512_add_epi32(lanes, _mm512_set1_epi32(i)));
    const int more = __builtin_popcount(is);
    const int room = capacity - found;
    if (room > 0)
      _mm512_mask_storeu_epi32(indexes + found, Lanes(more < room ? more : room), where);
    found += more;
  }
  return found;
}

int CountAbove(const float* x, int count, float value) {
  const __m512 limit = _mm512_set1_ps(value);
  int above = 0;
  for (int i = 0; i < count; i += kLanes) {
    above +=
        __builtin_popcount(_mm512_cmp_ps_mask(LoadOrLowest(x + i, count - i), limit, _CMP_GT_OQ));
  }
  return above;
}

}  // namespace millrace::cpu::avx512
