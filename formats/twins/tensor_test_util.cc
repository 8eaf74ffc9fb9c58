#include "formats/twins/tensor_test_util.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/tensors/dequantize.h"
#include "formats/tensors/float16.h"
#include "formats/twins/quantized_test_util.h"

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

// The nearest code, the even one of two as near; saturates.
uint8_t FloatToFp8(float value) {
  static const std::vector<float>* const magnitudes = [] {  // of the codes 0 to 0x7e, ascending
    auto* made = new std::vector<float>;
    for (int i = 0; i <= 0x7e; ++i) {
      const uint8_t code = static_cast<uint8_t>(i);
      Dequantize(TensorType::kFp8E4m3, {&code, 1}, absl::MakeSpan(&made->emplace_back(), 1));
    }
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
      case TensorType::kU8:
        Append(&out, static_cast<uint8_t>(values[i]));
        break;
      default:
        out += EncodeQuantized(type, values.subspan(i, step));
    }
  }
  return out;
}

std::vector<float> DecodeTensor(TensorType type, absl::Span<const uint8_t> bytes) {
  const TensorTypeTraits& traits = Traits(type);
  std::vector<float> values(bytes.size() / traits.block_bytes * traits.block_elements);
  Dequantize(type, bytes, absl::MakeSpan(values));
  return values;
}

}  // namespace millrace
