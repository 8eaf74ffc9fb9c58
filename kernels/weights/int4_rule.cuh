// Quantizes 32 weights to codes of four bits with a scale and a minimum: code on the host and on
// the device, with the same bits.
#ifndef MILLRACE_KERNELS_WEIGHTS_INT4_RULE_CUH_
#define MILLRACE_KERNELS_WEIGHTS_INT4_RULE_CUH_

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

namespace millrace::kernels {

inline constexpr int kInt4Group = 32;

// An element is scale * code + minimum.
struct Int4Group {
  __nv_bfloat16 scale;
  __nv_bfloat16 minimum;
  uint32_t codes[kInt4Group / 8];  // eight in a word, the first in the lowest bits
  double error;                    // sum of the squared differences from the weights

  __host__ __device__ int Code(int i) const {
    return static_cast<int>(codes[i / 8] >> (4 * (i % 8)) & 15);
  }
};

// Returns the nearest codes for a scale and a minimum, which are rounded to BF16 first. Where they
// are not finite then, codes and error are 0.
__host__ __device__ inline Int4Group WithCodes(const float (&x)[kInt4Group], float scale,
                                               float minimum) {
  Int4Group group = {.scale = __float2bfloat16_rn(scale),
                     .minimum = __float2bfloat16_rn(minimum),
                     .codes = {},
                     .error = 0};
  const float d = __bfloat162float(group.scale);
  const float m = __bfloat162float(group.minimum);
  constexpr float kLargest = 3.4e38f;
  if (!(fabsf(d) < kLargest) || !(fabsf(m) < kLargest)) return group;
  for (int i = 0; i < kInt4Group; ++i) {
    const float nearest = d != 0 ? rintf((x[i] - m) / d) : 0.0f;
    const float code = fminf(fmaxf(nearest, 0.0f), 15.0f);
    group.codes[i / 8] |= static_cast<uint32_t>(code) << (4 * (i % 8));
    const double off = static_cast<double>(fmaf(code, d, m)) - static_cast<double>(x[i]);
    group.error = fma(off, off, group.error);
  }
  return group;
}

// Fits a line through the pairs (code, x) by least squares, and returns its nearest codes.
__host__ __device__ inline Int4Group Fit(const float (&x)[kInt4Group], const Int4Group& group) {
  int codes = 0, squares = 0;
  double sum = 0, products = 0;
  for (int i = 0; i < kInt4Group; ++i) {
    const int code = group.Code(i);
    codes += code;
    squares += code * code;
    sum += static_cast<double>(x[i]);
    products = fma(static_cast<double>(code), static_cast<double>(x[i]), products);
  }
  const int spread = kInt4Group * squares - codes * codes;
  if (spread == 0) return group;
  const double scale = fma(-static_cast<double>(codes), sum, kInt4Group * products) / spread;
  const double minimum = fma(-scale, static_cast<double>(codes), sum) / kInt4Group;
  return WithCodes(x, static_cast<float>(scale), static_cast<float>(minimum));
}

// Quantizes by the rule of executors/weights/quantize.h's Q4_1, but that scale and minimum have the
// precision of BF16: they begin at the extremes of the weights and are then fitted to the codes,
// twice, as long as the error falls. What is not finite makes the whole group so.
__host__ __device__ inline Int4Group QuantizeInt4(const float (&x)[kInt4Group]) {
  float low = x[0], high = x[0];
  bool has_nan = false;
  for (const float value : x) {
    low = fminf(low, value);
    high = fmaxf(high, value);
    has_nan = has_nan || value != value;
  }
  if (has_nan) low = NAN;
  Int4Group best = WithCodes(x, (high - low) / 15, low);
  for (int i = 0; i < 2; ++i) {
    const Int4Group fitted = Fit(x, best);
    if (!(fitted.error < best.error)) break;
    best = fitted;
  }
  return best;
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_WEIGHTS_INT4_RULE_CUH_
