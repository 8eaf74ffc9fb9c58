// Compiled with AVX2 switched on: nothing here may instantiate code that other files share.
#include <immintrin.h>

#include "executors/cpu/avx2_math.h"
#include "executors/cpu/kernel_sets.h"

namespace millrace::cpu::avx2 {
namespace {

// Eight to BF16, to the nearest, ties to even; a NaN stays one.
inline __m128i ToBf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i upper =
      _mm256_srli_epi32(_mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
}

// Sixteen values, floats or BF16, at element `at` of out.
inline void StoreValues(Floats x, Form form, int at, void* out) {
  if (form == Form::kFloat) return Store(static_cast<float*>(out) + at, x);
  __m128i* halves = reinterpret_cast<__m128i*>(static_cast<uint16_t*>(out) + at);
  _mm_storeu_si128(halves, ToBf16(x.lo));
  _mm_storeu_si128(halves + 1, ToBf16(x.hi));
}

// Sixteen values to int8, and their sum.
inline int StoreBytes(Floats x, __m256 inverse, bool finite, int8_t* out) {
  if (!finite) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_setzero_si128());
    return 0;
  }
  const __m256i lo = _mm256_cvtps_epi32(_mm256_mul_ps(x.lo, inverse));
  const __m256i hi = _mm256_cvtps_epi32(_mm256_mul_ps(x.hi, inverse));
  const __m128i words_lo =
      _mm_packs_epi32(_mm256_castsi256_si128(lo), _mm256_extracti128_si256(lo, 1));
  const __m128i words_hi =
      _mm_packs_epi32(_mm256_castsi256_si128(hi), _mm256_extracti128_si256(hi, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_packs_epi16(words_lo, words_hi));
  const __m256i eight = _mm256_add_epi32(lo, hi);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  return _mm_cvtsi128_si32(four);
}

inline bool AnyNan(Floats a, Floats b) {
  return Bits({_mm256_cmp_ps(a.lo, b.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, b.hi, _CMP_UNORD_Q)}) !=
         0;
}

// One block of 32, `a` and `b`, in the form that out is in.
inline void StoreBlock(Floats a, Floats b, Form form, int block, void* out) {
  if (form != Form::kQ8) {
    StoreValues(a, form, block * kBlock, out);
    StoreValues(b, form, block * kBlock + 16, out);
    return;
  }
  QuantizedBlock& quantized = static_cast<QuantizedBlock*>(out)[block];
  const float largest = ReduceMax(Max(Abs(a), Abs(b)));
  const bool nan = AnyNan(a, b);
  const __m256 inverse = _mm256_set1_ps(largest >= kLeastQuantized ? 127.0f / largest : 0.0f);
  // What is not finite has no integer; the scale alone tells of it.
  const bool finite = !nan && largest < __builtin_inff();
  const int first = StoreBytes(a, inverse, finite, quantized.values);
  const int sum = first + StoreBytes(b, inverse, finite, quantized.values + 16);
  quantized.scale = nan ? __builtin_nanf("") : largest / 127.0f;
  quantized.scaled_sum = quantized.scale * static_cast<float>(sum);
  quantized.offset = -128 * sum;
  quantized.first_offset = -128 * first;
}

// x / (1 + exp(-y)), as in elementwise_avx512.cc.
inline Floats TimesSigmoid(Floats x, Floats y) {
  const Floats bounded = Min(All(88.0f), Sub(Zeros(), y));
  return Div(x, Add(All(1.0f), Exp(bounded)));
}

inline __m128i ToHalves(__m256 x) {
  // min and max return their second operand when one is a NaN.
  x = _mm256_max_ps(_mm256_set1_ps(-65504.0f), _mm256_min_ps(_mm256_set1_ps(65504.0f), x));
  return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline __m256i FirstLanes(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

}  // namespace

void Store(const float* x, int width, Form form, void* out) {
  int i = 0;
  for (; i + kBlock <= width; i += kBlock) {
    StoreBlock(Load(x + i), Load(x + i + 16), form, i / kBlock, out);
  }
  if (i < width) StoreValues(Load(x + i), form, i, out);
}

void Norm(const float* x, const float* weight, int size, int width, float epsilon, Form form,
          void* out) {
  Floats squares = Zeros();
  for (int i = 0; i < width; i += 16) {
    const Floats v = Load(x + i);
    squares = Fma(v, v, squares);
  }
  const float mean = ReduceAdd(squares) / static_cast<float>(size);
  const Floats factor = All(1.0f / __builtin_sqrtf(mean + epsilon));
  const auto normed = [&](int i) { return Mul(Mul(Load(x + i), factor), Load(weight + i)); };
  int i = 0;
  for (; i + kBlock <= width; i += kBlock) {
    StoreBlock(normed(i), normed(i + 16), form, i / kBlock, out);
  }
  if (i < width) StoreValues(normed(i), form, i, out);
}

void Gate(const float* x, Form form, void* out) {
  const auto gated = [x](int i) {
    const Floats gate = Load(x + i);
    return Mul(TimesSigmoid(gate, gate), Load(x + i + 16));
  };
  StoreBlock(gated(0), gated(32), form, 0, out);
}

void GeluGate(const float* x, Form form, void* out) {
  const auto gated = [x](int i) {
    const Floats gate = Load(x + i);
    const Floats cube = Fma(Mul(gate, gate), All(0.044715f), All(1.0f));
    const Floats y = Mul(Mul(gate, All(1.5957691216f)), cube);
    return Mul(TimesSigmoid(gate, y), Load(x + i + 16));
  };
  StoreBlock(gated(0), gated(32), form, 0, out);
}

void Cap(float* x, int count, float factor, float soft_cap) {
  for (int i = 0; i < count; i += 16) {
    const Floats lanes = Lanes(0, count - i);
    Floats v = Mul(LoadMasked(x + i, lanes), All(factor));
    if (soft_cap != 0) v = SoftCap(v, soft_cap);
    StoreMasked(x + i, lanes, v);
  }
}

void Rope(float* head, const float* cosines, const float* sines, int pairs, bool interleaved) {
  if (!interleaved) {
    for (int i = 0; i < pairs; i += 8) {
      const __m256i has = FirstLanes(pairs - i);
      const __m256 a = _mm256_maskload_ps(head + i, has);
      const __m256 b = _mm256_maskload_ps(head + pairs + i, has);
      const __m256 cosine = _mm256_maskload_ps(cosines + i, has);
      const __m256 sine = _mm256_maskload_ps(sines + i, has);
      _mm256_maskstore_ps(head + i, has, _mm256_fmsub_ps(a, cosine, _mm256_mul_ps(b, sine)));
      _mm256_maskstore_ps(head + pairs + i, has,
                          _mm256_fmadd_ps(b, cosine, _mm256_mul_ps(a, sine)));
    }
    return;
  }
  const __m256i spread = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  for (int i = 0; i < pairs; i += 4) {
    const __m256i has = FirstLanes(2 * (pairs - i));
    const __m256i has_pair = FirstLanes(pairs - i < 4 ? pairs - i : 4);
    const auto load = [&](const float* from) {
      return _mm256_permutevar8x32_ps(_mm256_maskload_ps(from + i, has_pair), spread);
    };
    const __m256 x = _mm256_maskload_ps(head + 2 * i, has);
    const __m256 turned = _mm256_mul_ps(_mm256_permute_ps(x, 0xb1), load(sines));
    _mm256_maskstore_ps(head + 2 * i, has, _mm256_fmaddsub_ps(x, load(cosines), turned));
  }
}

void Append(const float* k, const float* v, int head_size, uint16_t* keys, uint16_t* values) {
  for (int i = 0; i < head_size; i += 8) {
    alignas(16) uint16_t halves[8];
    _mm_store_si128(reinterpret_cast<__m128i*>(halves), ToHalves(_mm256_loadu_ps(k + i)));
    for (int j = 0; j < 8; ++j) keys[(i + j) * kTileRows] = halves[j];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(values + i), ToHalves(_mm256_loadu_ps(v + i)));
  }
}

}  // namespace millrace::cpu::avx2
