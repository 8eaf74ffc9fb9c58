#include <algorithm>
#include <cmath>
#include <limits>

#include "executors/cpu/kernels/kernel_sets.h"
#include "formats/tensors/float16.h"

namespace millrace::cpu::plain {
namespace {

// Values that are no quantized block.
void StoreValues(const float* x, int count, Form form, int at, void* out) {
  if (form == Form::kFloat) {
    std::copy_n(x, count, static_cast<float*>(out) + at);
  } else {
    std::transform(x, x + count, static_cast<uint16_t*>(out) + at, FloatToBf16);
  }
}

void StoreBlock(const float* x, Form form, int block, void* out) {
  if (form != Form::kQ8) return StoreValues(x, kBlock, form, block * kBlock, out);
  QuantizedBlock& quantized = static_cast<QuantizedBlock*>(out)[block];
  float largest = 0;
  bool nan = false;
  for (int i = 0; i < kBlock; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    nan = nan || std::isnan(x[i]);
  }
  const float inverse = largest >= kLeastQuantized && !nan ? 127.0f / largest : 0.0f;
  int sums[2] = {};  // of the halves
  for (int i = 0; i < kBlock; ++i) {
    const float scaled = nan || std::isinf(largest) ? 0.0f : x[i] * inverse;
    quantized.values[i] = static_cast<int8_t>(std::nearbyint(scaled));
    sums[i / 16] += quantized.values[i];
  }
  quantized.scale = nan ? std::numeric_limits<float>::quiet_NaN() : largest / 127.0f;
  quantized.scaled_sum = quantized.scale * static_cast<float>(sums[0] + sums[1]);
  quantized.offset = -128 * (sums[0] + sums[1]);
  quantized.first_offset = -128 * sums[0];
}

constexpr float kGeluFactor = 0.7978845608f;  // sqrt(2 / pi)
constexpr float kGeluCube = 0.044715f;

template <typename Function>
void StoreGated(const float* x, Form form, void* out, const Function& function) {
  float gated[kBlock];
  for (int i = 0; i < kBlock; ++i) {
    const int at = i / kTileRows * 2 * kTileRows + i % kTileRows;
    gated[i] = function(x[at], x[at + kTileRows]);
  }
  StoreBlock(gated, form, 0, out);
}

uint16_t ToHalf(float x) {
  return FloatToHalf(std::isnan(x) ? x : std::clamp(x, -65504.0f, 65504.0f));
}

}  // namespace

void Store(const float* x, int width, Form form, void* out) {
  int i = 0;
  for (; i + kBlock <= width; i += kBlock) StoreBlock(x + i, form, i / kBlock, out);
  if (i < width) StoreValues(x + i, width - i, form, i, out);
}

void Norm(const float* x, const float* weight, int size, int width, float epsilon, Form form,
          void* out) {
  float lanes[kTileRows] = {};
  for (int i = 0; i < width; i += kTileRows) {
    for (int lane = 0; lane < kTileRows; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  }
  float squares = 0;
  for (float lane : lanes) squares += lane;
  const float factor = 1.0f / std::sqrt(squares / static_cast<float>(size) + epsilon);
  for (int i = 0; i < width; i += kBlock) {
    const int count = std::min(kBlock, width - i);
    float normed[kBlock];
    for (int j = 0; j < count; ++j) normed[j] = x[i + j] * factor * weight[i + j];
    if (count == kBlock) {
      StoreBlock(normed, form, i / kBlock, out);
    } else {
      StoreValues(normed, count, form, i, out);
    }
  }
}

void Gate(const float* x, Form form, void* out) {
  StoreGated(x, form, out, [](float gate, float up) { return gate / (1 + std::exp(-gate)) * up; });
}

void GeluGate(const float* x, Form form, void* out) {
  StoreGated(x, form, out, [](float gate, float up) {
    const float cube = kGeluCube * gate * gate * gate;
    return gate / 2 * (1 + std::tanh(kGeluFactor * (gate + cube))) * up;
  });
}

void ClampedGate(const float* x, Form form, void* out) {
  StoreGated(x, form, out, [](float gate, float up) {
    const float g = gate > 7 ? 7 : gate;  // a NaN stays one
    return g / (1 + std::exp(-1.702f * g)) * (std::clamp(up, -7.0f, 7.0f) + 1);
  });
}

void ErfGeluGate(const float* x, Form form, void* out) {
  StoreGated(x, form, out, [](float gate, float up) {
    return gate / 2 * (1 + std::erf(gate * static_cast<float>(M_SQRT1_2))) * up;
  });
}

void SquaredRelu(const float* x, Form form, void* out) {
  float squares[kBlock];
  for (int i = 0; i < kBlock; ++i) {
    const float positive = x[i] < 0 ? 0 : x[i];  // a NaN stays one
    squares[i] = positive * positive;
  }
  StoreBlock(squares, form, 0, out);
}

void Cap(float* x, int count, float factor, float soft_cap) {
  for (int i = 0; i < count; ++i) {
    x[i] *= factor;
    if (soft_cap != 0) x[i] = soft_cap * std::tanh(x[i] / soft_cap);
  }
}

void Rope(float* head, const float* cosines, const float* sines, int pairs, bool interleaved) {
  const int step = interleaved ? 2 : 1;
  const int partner = interleaved ? 1 : pairs;
  for (int i = 0; i < pairs; ++i) {
    const float a = head[step * i];
    const float b = head[step * i + partner];
    head[step * i] = a * cosines[i] - b * sines[i];
    head[step * i + partner] = b * cosines[i] + a * sines[i];
  }
}

void Append(const float* k, const float* v, int head_size, uint16_t* keys, uint16_t* values) {
  for (int i = 0; i < head_size; ++i) {
    keys[i * kTileRows] = ToHalf(k[i]);
    values[i] = ToHalf(v[i]);
  }
}

}  // namespace millrace::cpu::plain
