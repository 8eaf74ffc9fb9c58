#include "formats/tensor_test_util.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/float16.h"

namespace millrace {
namespace {

template <typename T>
void Append(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void EncodeQ8Block(const float* values, std::string* out) {
  float most = 0;
  for (int i = 0; i < 32; ++i) most = std::max(most, std::fabs(values[i]));
  const uint16_t scale = FloatToHalf(most / 127);
  Append(out, scale);
  const float inverse = HalfToFloat(scale) == 0 ? 0 : 1 / HalfToFloat(scale);
  for (int i = 0; i < 32; ++i) {
    Append(out,
           static_cast<int8_t>(std::clamp(std::nearbyint(values[i] * inverse), -127.f, 127.f)));
  }
}

void EncodeQ4Block(const float* values, std::string* out) {
  const auto [low, high] = std::minmax_element(values, values + 32);
  const uint16_t scale = FloatToHalf((*high - *low) / 15);
  const uint16_t minimum = FloatToHalf(*low);
  Append(out, scale);
  Append(out, minimum);
  const float inverse = HalfToFloat(scale) == 0 ? 0 : 1 / HalfToFloat(scale);
  const auto quantized = [&](int i) {
    return static_cast<uint8_t>(
        std::clamp(std::nearbyint((values[i] - HalfToFloat(minimum)) * inverse), 0.f, 15.f));
  };
  for (int i = 0; i < 16; ++i) Append<uint8_t>(out, quantized(i) | quantized(i + 16) << 4);
}

// Rounds to nearest, ties to even; for finite values.
uint16_t FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float Fp8ToFloat(uint8_t code) {
  const int exponent = code >> 3 & 15;
  const float mantissa = static_cast<float>(code & 7) / 8;
  const float magnitude =
      std::ldexp(exponent == 0 ? mantissa : 1 + mantissa, std::max(exponent, 1) - 7);
  return (code & 0x7f) == 0x7f ? std::nanf("") : (code & 0x80) != 0 ? -magnitude : magnitude;
}

// The nearest code, the even one of two as near; saturates.
uint8_t FloatToFp8(float value) {
  static const std::vector<float>* const magnitudes = [] {  // of the codes 0 to 0x7e, ascending
    auto* made = new std::vector<float>;
    for (int code = 0; code <= 0x7e; ++code) made->push_back(Fp8ToFloat(code));
    return made;
  }();
  const float magnitude = std::min(std::fabs(value), magnitudes->back());
  const auto above = std::lower_bound(magnitudes->begin(), magnitudes->end(), magnitude);
  auto code = static_cast<uint8_t>(above - magnitudes->begin());
  if (code > 0) {
    const float up = *above - magnitude;
    const float down = magnitude - *(above - 1);
    if (down < up || (down == up && code % 2 == 1)) --code;
  }
  return std::signbit(value) ? code | 0x80 : code;
}

template <typename T>
T Load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

void DecodeBlock(TensorType type, const uint8_t* block, float* out) {
  switch (type) {
    case TensorType::kF32:
      *out = Load<float>(block);
      return;
    case TensorType::kF16:
      *out = HalfToFloat(Load<uint16_t>(block));
      return;
    case TensorType::kQ8_0: {
      const float scale = HalfToFloat(Load<uint16_t>(block));
      for (int i = 0; i < 32; ++i) out[i] = static_cast<int8_t>(block[2 + i]) * scale;
      return;
    }
    case TensorType::kQ4_1: {
      const float scale = HalfToFloat(Load<uint16_t>(block));
      const float minimum = HalfToFloat(Load<uint16_t>(block + 2));
      for (int i = 0; i < 16; ++i) {
        out[i] = (block[4 + i] & 15) * scale + minimum;
        out[i + 16] = (block[4 + i] >> 4) * scale + minimum;
      }
      return;
    }
    case TensorType::kBf16:
      *out = Bf16ToFloat(Load<uint16_t>(block));
      return;
    case TensorType::kFp8E4m3:
      *out = Fp8ToFloat(*block);
      return;
  }
}

}  // namespace

std::string EncodeTensor(TensorType type, absl::Span<const float> values) {
  const int step = Traits(type).block_elements;
  std::string out;
  for (size_t i = 0; i < values.size(); i += step) {
    switch (type) {
      case TensorType::kF32:
        Append(&out, values[i]);
        break;
      case TensorType::kF16:
        Append(&out, FloatToHalf(values[i]));
        break;
      case TensorType::kQ8_0:
        EncodeQ8Block(&values[i], &out);
        break;
      case TensorType::kQ4_1:
        EncodeQ4Block(&values[i], &out);
        break;
      case TensorType::kBf16:
        Append(&out, FloatToBf16(values[i]));
        break;
      case TensorType::kFp8E4m3:
        Append(&out, FloatToFp8(values[i]));
        break;
    }
  }
  return out;
}

std::vector<float> DecodeTensor(TensorType type, absl::Span<const uint8_t> bytes) {
  const TensorTypeTraits& traits = Traits(type);
  const size_t blocks = bytes.size() / traits.block_bytes;
  std::vector<float> values(blocks * traits.block_elements);
  for (size_t i = 0; i < blocks; ++i) {
    DecodeBlock(type, &bytes[i * traits.block_bytes], &values[i * traits.block_elements]);
  }
  return values;
}

}  // namespace millrace
