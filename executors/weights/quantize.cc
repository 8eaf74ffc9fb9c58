#include "executors/weights/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/tensors/dequantize.h"
#include "formats/tensors/float16.h"

namespace millrace {
namespace {

constexpr int kBlock = kQuantBlock;
constexpr int kCodes4 = 15;  // the largest code of 4 bits
constexpr int kFits = 2;

void PutHalf(uint16_t half, uint8_t* to) { std::memcpy(to, &half, sizeof(half)); }

void QuantizeQ8(const float* x, uint8_t* out) {
  float largest = 0;
  for (int i = 0; i < kBlock; ++i) {
    largest = std::isnan(x[i]) ? x[i] : std::max(largest, std::fabs(x[i]));
    if (std::isnan(largest)) break;
  }
  const uint16_t scale = FloatToHalf(largest / 127);
  PutHalf(scale, out);
  const float d = HalfToFloat(scale);
  for (int i = 0; i < kBlock; ++i) {
    const float code = d > 0 && std::isfinite(d) ? std::nearbyint(x[i] / d) : 0;
    out[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(std::clamp(code, -127.0f, 127.0f)));
  }
}

struct Q4Block {
  uint16_t scale = 0;
  uint16_t minimum = 0;
  float codes[kBlock] = {};
  double error = 0;
};

// The nearest codes for a scale and a minimum in half precision.
Q4Block WithCodes(const float* x, float scale, float minimum) {
  Q4Block block{.scale = FloatToHalf(scale), .minimum = FloatToHalf(minimum)};
  const float d = HalfToFloat(block.scale);
  const float m = HalfToFloat(block.minimum);
  if (!std::isfinite(d) || !std::isfinite(m)) return block;
  for (int i = 0; i < kBlock; ++i) {
    const float code = d != 0 ? std::nearbyint((x[i] - m) / d) : 0;
    block.codes[i] = std::clamp(code, 0.0f, static_cast<float>(kCodes4));
    const double off = static_cast<double>(block.codes[i] * d + m) - x[i];
    block.error += off * off;
  }
  return block;
}

// The line through (code, x) by least squares, and its nearest codes.
Q4Block Fit(const float* x, const Q4Block& block) {
  double codes = 0, squares = 0, sum = 0, products = 0;
  for (int i = 0; i < kBlock; ++i) {
    const double code = block.codes[i];
    codes += code;
    squares += code * code;
    sum += x[i];
    products += code * x[i];
  }
  const double spread = squares * kBlock - codes * codes;
  if (spread == 0) return block;
  const double scale = (products * kBlock - codes * sum) / spread;
  return WithCodes(x, static_cast<float>(scale),
                   static_cast<float>((sum - scale * codes) / kBlock));
}

void QuantizeQ4(const float* x, uint8_t* out) {
  float low = x[0];
  float high = x[0];
  for (int i = 1; i < kBlock; ++i) {
    low = std::isnan(x[i]) ? x[i] : std::min(low, x[i]);
    high = std::max(high, x[i]);
    if (std::isnan(low)) break;
  }
  Q4Block best = WithCodes(x, (high - low) / kCodes4, low);
  for (int i = 0; i < kFits; ++i) {
    const Q4Block fitted = Fit(x, best);
    if (!(fitted.error < best.error)) break;
    best = fitted;
  }
  PutHalf(best.scale, out);
  PutHalf(best.minimum, out + 2);
  for (int i = 0; i < kBlock / 2; ++i) {
    out[4 + i] = static_cast<uint8_t>(static_cast<int>(best.codes[i]) |
                                      static_cast<int>(best.codes[i + kBlock / 2]) << 4);
  }
}

}  // namespace

void QuantizeRow(TensorType type, absl::Span<const float> row, uint8_t* out) {
  for (size_t i = 0; i < row.size(); i += kBlock, out += Traits(type).block_bytes) {
    if (type == TensorType::kQ8_0) {
      QuantizeQ8(&row[i], out);
    } else {
      QuantizeQ4(&row[i], out);
    }
  }
}

}  // namespace millrace
