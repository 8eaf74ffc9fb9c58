// Compiled with AVX2 switched on: nothing here may instantiate code that other files share.
#include <immintrin.h>

#include "executors/cpu/avx2_math.h"
#include "executors/cpu/kernel_sets.h"

namespace millrace::cpu::avx2 {
namespace {

constexpr int kLanes = 16;
constexpr int kSumRun = 64;  // registers that are added up in floats before doubles take over

inline Floats LoadOrLowest(const float* x, int left) {
  if (left >= kLanes) return Load(x);
  const Floats lanes = Lanes(0, left);
  return Choose(lanes, LoadMasked(x, lanes), All(-__builtin_inff()));
}

template <int kPredicate>
inline unsigned Compare(Floats a, Floats b, int left) {
  const Floats mask = {_mm256_cmp_ps(a.lo, b.lo, kPredicate),
                       _mm256_cmp_ps(a.hi, b.hi, kPredicate)};
  return Bits(mask) & (left >= kLanes ? 0xffffu : (1u << left) - 1);
}

}  // namespace

void Maximum(const float* x, int count, float* value, int* index, bool* ok) {
  Floats most = All(-__builtin_inff());
  unsigned bad = 0;
  for (int i = 0; i < count; i += kLanes) {
    const Floats v = LoadOrLowest(x + i, count - i);
    bad |= Compare<_CMP_NLT_UQ>(Abs(v), All(__builtin_inff()), count - i);
    most = Max(v, most);
  }
  *ok = bad == 0;
  *value = ReduceMax(most);
  *index = 0;
  for (int i = 0; i < count; i += kLanes) {
    const unsigned equal =
        Compare<_CMP_EQ_OQ>(LoadOrLowest(x + i, count - i), All(*value), count - i);
    if (equal != 0) {
      *index = i + __builtin_ctz(equal);
      return;
    }
  }
}

double ExpSum(const float* x, int count, float maximum, float factor, float* p) {
  double total = 0;
  for (int begin = 0; begin < count; begin += kSumRun * kLanes) {
    const int end = begin + kSumRun * kLanes < count ? begin + kSumRun * kLanes : count;
    Floats sum = Zeros();
    for (int i = begin; i < end; i += kLanes) {
      const Floats v = LoadOrLowest(x + i, count - i);
      const Floats e = Exp(Mul(Sub(v, All(maximum)), All(factor)));
      StoreMasked(p + i, Lanes(0, count - i), e);
      sum = Add(sum, e);
    }
    total += static_cast<double>(ReduceAdd(sum));
  }
  return total;
}

int Select(const float* x, int count, float threshold, int32_t* indexes, int capacity) {
  int found = 0;
  for (int i = 0; i < count; i += kLanes) {
    unsigned is = Compare<_CMP_GE_OQ>(LoadOrLowest(x + i, count - i), All(threshold), count - i);
    for (; is != 0; is &= is - 1, ++found) {
      if (found < capacity) indexes[found] = i + __builtin_ctz(is);
    }
  }
  return found;
}

int CountAbove(const float* x, int count, float value) {
  int above = 0;
  for (int i = 0; i < count; i += kLanes) {
    above += __builtin_popcount(
        Compare<_CMP_GT_OQ>(LoadOrLowest(x + i, count - i), All(value), count - i));
  }
  return above;
}

}  // namespace millrace::cpu::avx2
