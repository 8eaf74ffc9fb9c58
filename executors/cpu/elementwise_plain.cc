#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "executors/cpu/kernel_sets.h"
#include "formats/float16.h"

namespace millrace::cpu::plain {
namespace {

void StoreBlock(const float* x, Form form, int block, void* out) {
  if (form == Form::kFloat) {
    std::copy_n(x, kBlock, static_cast<float*>(out) + block * kBlock);
    return;
  }
  QuantizedBlock& quantized = static_cast<QuantizedBlock*>(out)[block];
  float largest = 0;
  bool nan = false;
  for (int i = 0; i < kBlock; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    nan = nan || std::isnan(x[i]);
  }
  const float inverse = largest > 0 && !nan ? 127.0f / largest : 0.0f;
  int sum = 0;
  for (int i = 0; i < kBlock; ++i) {
    const float scaled = nan || std::isinf(largest) ? 0.0f : x[i] * inverse;
    quantized.values[i] = static_cast<int8_t>(std::nearbyint(scaled));
    sum += quantized.values[i];
  }
  quantized.scale = nan ? std::numeric_limits<float>::quiet_NaN() : largest / 127.0f;
  quantized.correction = form == Form::kQ8ForQ4
                             ? std::bit_cast<uint32_t>(quantized.scale * static_cast<float>(sum))
                             : static_cast<uint32_t>(-128 * sum);
}

uint16_t ToHalf(float x) {
  return FloatToHalf(std::isnan(x) ? x : std::clamp(x, -65504.0f, 65504.0f));
}

}  // namespace

void Store(const float* x, int width, Form form, void* out) {
  int i = 0;
  for (; i + kBlock <= width; i += kBlock) StoreBlock(x + i, form, i / kBlock, out);
  if (i < width) std::copy_n(x + i, width - i, static_cast<float*>(out) + i);
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
      std::copy_n(normed, count, static_cast<float*>(out) + i);
    }
  }
}

void Gate(const float* x, Form form, void* out) {
  float gated[kBlock];
  for (int i = 0; i < kBlock; ++i) {
    const int at = i / kTileRows * 2 * kTileRows + i % kTileRows;
    gated[i] = x[at] / (1.0f + std::exp(-x[at])) * x[at + kTileRows];
  }
  StoreBlock(gated, form, 0, out);
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
