// Compiled with AVX-512 switched on: nothing here may instantiate code that other files share.
#include <immintrin.h>

#include "executors/cpu/avx512_math.h"
#include "executors/cpu/kernel_sets.h"

namespace millrace::cpu::avx512 {
namespace {

// To the nearest, ties to even; a NaN stays one.
inline __m256i ToBf16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(
      _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000)), 16));
}

// One block of 32, `a` and `b`, in the form that out is in.
inline void StoreBlock(__m512 a, __m512 b, Form form, int block, void* out) {
  if (form == Form::kFloat) {
    float* floats = static_cast<float*>(out) + block * kBlock;
    _mm512_storeu_ps(floats, a);
    _mm512_storeu_ps(floats + 16, b);
    return;
  }
  if (form == Form::kBf16) {
    __m256i* halves = static_cast<__m256i*>(out) + 2 * block;
    _mm256_storeu_si256(halves, ToBf16(a));
    _mm256_storeu_si256(halves + 1, ToBf16(b));
    return;
  }
  QuantizedBlock& quantized = static_cast<QuantizedBlock*>(out)[block];
  const float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
  const bool nan = _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0;
  const __m512 inverse = _mm512_set1_ps(largest >= kLeastQuantized ? 127.0f / largest : 0.0f);
  // What is not finite has no integer; the scale alone tells of it.
  const __mmask16 finite = !nan && largest < __builtin_inff() ? 0xffff : 0;
  const __m512i qa = _mm512_maskz_cvtps_epi32(finite, _mm512_mul_ps(a, inverse));
  const __m512i qb = _mm512_maskz_cvtps_epi32(finite, _mm512_mul_ps(b, inverse));
  const int first = _mm512_reduce_add_epi32(qa);
  const int sum = first + _mm512_reduce_add_epi32(qb);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(quantized.values), _mm512_cvtsepi32_epi8(qa));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(quantized.values + 16), _mm512_cvtsepi32_epi8(qb));
  quantized.scale = nan ? __builtin_nanf("") : largest / 127.0f;
  quantized.scaled_sum = quantized.scale * static_cast<float>(sum);
  quantized.offset = -128 * sum;
  quantized.first_offset = -128 * first;
}

// What is left over of whole blocks: 16 values, floats or BF16.
inline void StoreRest(__m512 x, Form form, int at, void* out) {
  if (form == Form::kFloat) {
    _mm512_storeu_ps(static_cast<float*>(out) + at, x);
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<uint16_t*>(out) + at), ToBf16(x));
  }
}

// Lane 2i takes lane 2i + 1 and the other way round.
inline __m512 SwapPairs(__m512 x) { return _mm512_permute_ps(x, 0xb1); }

// x / (1 + exp(-y)). exp overflows to infinity at y under -88, where the quotient is 0 to every
// digit: -88 gives that.
inline __m512 TimesSigmoid(__m512 x, __m512 y) {
  const __m512 bounded =
      _mm512_min_ps(_mm512_set1_ps(88.0f), _mm512_sub_ps(_mm512_setzero_ps(), y));
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), Exp(bounded)));
}

inline __m256i ToHalves(__m512 x) {
  const __m512 most = _mm512_set1_ps(65504.0f);
  // min and max return their second operand when one is a NaN.
  x = _mm512_max_ps(_mm512_set1_ps(-65504.0f), _mm512_min_ps(most, x));
  return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

}  // namespace

void Store(const float* x, int width, Form form, void* out) {
  int i = 0;
  for (; i + kBlock <= width; i += kBlock) {
    StoreBlock(_mm512_loadu_ps(x + i), _mm512_loadu_ps(x + i + 16), form, i / kBlock, out);
  }
  if (i < width) StoreRest(_mm512_loadu_ps(x + i), form, i, out);
}

void Norm(const float* x, const float* weight, int size, int width, float epsilon, Form form,
          void* out) {
  __m512 squares = _mm512_setzero_ps();
  for (int i = 0; i < width; i += 16) {
    const __m512 v = _mm512_loadu_ps(x + i);
    squares = _mm512_fmadd_ps(v, v, squares);
  }
  const float mean = _mm512_reduce_add_ps(squares) / static_cast<float>(size);
  const __m512 factor = _mm512_set1_ps(1.0f / __builtin_sqrtf(mean + epsilon));
  const auto normed = [&](int i) {
    return _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), factor),
                         _mm512_loadu_ps(weight + i));
  };
  int i = 0;
  for (; i + kBlock <= width; i += kBlock) {
    StoreBlock(normed(i), normed(i + 16), form, i / kBlock, out);
  }
  if (i < width) StoreRest(normed(i), form, i, out);
}

void Gate(const float* x, Form form, void* out) {
  const auto gated = [x](int i) {
    const __m512 gate = _mm512_loadu_ps(x + i);
    return _mm512_mul_ps(TimesSigmoid(gate, gate), _mm512_loadu_ps(x + i + 16));
  };
  StoreBlock(gated(0), gated(32), form, 0, out);
}

void GeluGate(const float* x, Form form, void* out) {
  // (1 + tanh(y)) / 2 is the sigmoid of 2y, y = sqrt(2 / pi) * (x + 0.044715 x^3).
  const auto gated = [x](int i) {
    const __m512 gate = _mm512_loadu_ps(x + i);
    const __m512 cube =
        _mm512_fmadd_ps(_mm512_mul_ps(gate, gate), _mm512_set1_ps(0.044715f), _mm512_set1_ps(1.0f));
    const __m512 y = _mm512_mul_ps(_mm512_mul_ps(gate, _mm512_set1_ps(1.5957691216f)), cube);
    return _mm512_mul_ps(TimesSigmoid(gate, y), _mm512_loadu_ps(x + i + 16));
  };
  StoreBlock(gated(0), gated(32), form, 0, out);
}

void Cap(float* x, int count, float factor, float soft_cap) {
  for (int i = 0; i < count; i += 16) {
    const int left = count - i;
    const __mmask16 has = left >= 16 ? 0xffff : static_cast<__mmask16>((1 << left) - 1);
    __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(has, x + i), _mm512_set1_ps(factor));
    if (soft_cap != 0) v = SoftCap(v, soft_cap);
    _mm512_mask_storeu_ps(x + i, has, v);
  }
}

void Rope(float* head, const float* cosines, const float* sines, int pairs, bool interleaved) {
  if (!interleaved) {
    for (int i = 0; i < pairs; i += 16) {
      const int left = pairs - i;
      const __mmask16 has = left >= 16 ? 0xffff : static_cast<__mmask16>((1 << left) - 1);
      const __m512 a = _mm512_maskz_loadu_ps(has, head + i);
      const __m512 b = _mm512_maskz_loadu_ps(has, head + pairs + i);
      const __m512 cosine = _mm512_maskz_loadu_ps(has, cosines + i);
      const __m512 sine = _mm512_maskz_loadu_ps(has, sines + i);
      _mm512_mask_storeu_ps(head + i, has, _mm512_fmsub_ps(a, cosine, _mm512_mul_ps(b, sine)));
      _mm512_mask_storeu_ps(head + pairs + i, has,
                            _mm512_fmadd_ps(b, cosine, _mm512_mul_ps(a, sine)));
    }
    return;
  }
  const __m512i spread = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  for (int i = 0; i < pairs; i += 8) {
    const int left = pairs - i;
    const __mmask8 has_pair = left >= 8 ? 0xff : static_cast<__mmask8>((1 << left) - 1);
    const __mmask16 has = left >= 8 ? 0xffff : static_cast<__mmask16>((1 << 2 * left) - 1);
    const auto load = [&](const float* from) {
      return _mm512_permutexvar_ps(
          spread, _mm512_castps256_ps512(_mm256_maskz_loadu_ps(has_pair, from + i)));
    };
    const __m512 x = _mm512_maskz_loadu_ps(has, head + 2 * i);
    const __m512 turned = _mm512_mul_ps(SwapPairs(x), load(sines));
    _mm512_mask_storeu_ps(head + 2 * i, has, _mm512_fmaddsub_ps(x, load(cosines), turned));
  }
}

void Append(const float* k, const float* v, int head_size, uint16_t* keys, uint16_t* values) {
  for (int i = 0; i < head_size; i += 16) {
    alignas(32) uint16_t halves[16];
    _mm256_store_si256(reinterpret_cast<__m256i*>(halves), ToHalves(_mm512_loadu_ps(k + i)));
    for (int j = 0; j < 16; ++j) keys[(i + j) * kTileRows] = halves[j];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + i), ToHalves(_mm512_loadu_ps(v + i)));
  }
}

}  // namespace millrace::cpu::avx512
