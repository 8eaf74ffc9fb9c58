// Compiled with AVX-512 switched on: nothing here may instantiate code that other files share.
#include <immintrin.h>

#include "executors/cpu/avx512_math.h"
#include "executors/cpu/kernel_sets.h"

namespace millrace::cpu::avx512 {
namespace {

// One block of 32, `a` and `b`, in the form that out is in.
inline void StoreBlock(__m512 a, __m512 b, Form form, int block, void* out) {
  if (form == Form::kFloat) {
    float* floats = static_cast<float*>(out) + block * kBlock;
    _mm512_storeu_ps(floats, a);
    _mm512_storeu_ps(floats + 16, b);
    return;
  }
  QuantizedBlock& quantized = static_cast<QuantizedBlock*>(out)[block];
  const float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
  const bool nan = _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0;
  const __m512 inverse = _mm512_set1_ps(largest > 0 ? 127.0f / largest : 0.0f);
  // What is not finite has no integer; the scale alone tells of it.
  const __mmask16 finite = !nan && largest < __builtin_inff() ? 0xffff : 0;
  const __m512i qa = _mm512_maskz_cvtps_epi32(finite, _mm512_mul_ps(a, inverse));
  const __m512i qb = _mm512_maskz_cvtps_epi32(finite, _mm512_mul_ps(b, inverse));
  const int sum = _mm512_reduce_add_epi32(_mm512_add_epi32(qa, qb));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(quantized.values), _mm512_cvtsepi32_epi8(qa));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(quantized.values + 16), _mm512_cvtsepi32_epi8(qb));
  const float scale = nan ? __builtin_nanf("") : largest / 127.0f;
  quantized.scale = scale;
  quantized.correction = form == Form::kQ8ForQ4
                             ? __builtin_bit_cast(uint32_t, scale * static_cast<float>(sum))
                             : static_cast<uint32_t>(-128 * sum);
}

// Lane 2i takes lane 2i + 1 and the other way round.
inline __m512 SwapPairs(__m512 x) { return _mm512_permute_ps(x, 0xb1); }

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
  if (i < width) _mm512_storeu_ps(static_cast<float*>(out) + i, _mm512_loadu_ps(x + i));
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
  if (i < width) _mm512_storeu_ps(static_cast<float*>(out) + i, normed(i));
}

void Gate(const float* x, Form form, void* out) {
  const auto gated = [x](int i) {
    const __m512 gate = _mm512_loadu_ps(x + i);
    const __m512 up = _mm512_loadu_ps(x + i + 16);
    const __m512 one = _mm512_set1_ps(1.0f);
    // exp overflows to infinity at gates under -88, where silu is 0 to every digit: -88 gives that.
    const __m512 bounded =
        _mm512_min_ps(_mm512_set1_ps(88.0f), _mm512_sub_ps(_mm512_setzero_ps(), gate));
    return _mm512_mul_ps(_mm512_div_ps(gate, _mm512_add_ps(one, Exp(bounded))), up);
  };
  StoreBlock(gated(0), gated(32), form, 0, out);
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
