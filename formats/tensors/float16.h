// IEEE 754 binary16, and bfloat16, to and from float, in plain integer arithmetic.
#ifndef MILLRACE_FORMATS_TENSORS_FLOAT16_H_
#define MILLRACE_FORMATS_TENSORS_FLOAT16_H_

#include <bit>
#include <cstdint>

namespace millrace {

// Converts a float16. Exact for every input; a NaN stays a NaN.
constexpr float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 0x1f;
  const uint32_t mantissa = half & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

// Rounds to nearest, ties to even; too large becomes infinity.
constexpr uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and more round to infinity
  // Under 2^-14 the result counts steps of 2^-24; adding 2^-1 makes the FPU's own rounding do it.
  if (magnitude < 0x38800000) {
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - 0x3f000000);
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return sign | static_cast<uint16_t>((rounded - 0x38000000) >> 13);
}

// Converts a bfloat16, which is the upper half of a float.
constexpr float Bf16ToFloat(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

// Rounds to nearest, ties to even; a NaN stays a NaN.
constexpr uint16_t FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TENSORS_FLOAT16_H_
