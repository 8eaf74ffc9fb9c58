#include "formats/tensors/dequantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/tensors/codebook_blocks.h"
#include "formats/tensors/float16.h"

namespace millrace {
namespace {

constexpr int kHalf = kQuantBlock / 2;  // elements that share a scale in Q2_K, Q3_K and Q6_K

// The values of ggml's table for MXFP4.
constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

template <typename T>
T Load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

float LoadHalf(const uint8_t* from) { return HalfToFloat(Load<uint16_t>(from)); }

float Fp8ToFloat(uint8_t code) {
  const int exponent = code >> 3 & 15;
  const float mantissa = static_cast<float>(code & 7) / 8;
  const float magnitude =
      std::ldexp(exponent == 0 ? mantissa : 1 + mantissa, std::max(exponent, 1) - 7);
  return (code & 0x7f) == 0x7f ? std::nanf("") : (code & 0x80) != 0 ? -magnitude : magnitude;
}

float LoadFloat(TensorType type, const uint8_t* from) {
  switch (type) {
    case TensorType::kF32:
      return Load<float>(from);
    case TensorType::kF16:
      return LoadHalf(from);
    case TensorType::kBf16:
      return Bf16ToFloat(Load<uint16_t>(from));
    default:
      return Fp8ToFloat(*from);
  }
}

void SetScales(QuantizedElements* block, float scale, float minimum = 0) {
  block->scales[0] = block->scales[1] = scale;
  block->minima[0] = block->minima[1] = minimum;
}

// Elements i and i + 16 share a byte.
void ReadNibbles(const uint8_t* from, uint8_t* codes) {
  for (int i = 0; i < kHalf; ++i) {
    codes[i] = from[i] & 15;
    codes[i + kHalf] = from[i] >> 4;
  }
}

// Bit i is the fifth of element i.
void AddFifthBits(const uint8_t* from, uint8_t* codes) {
  const uint32_t bits = Load<uint32_t>(from);
  for (int i = 0; i < kQuantBlock; ++i) codes[i] |= (bits >> i & 1) << 4;
}

// Field `field`, `width` bits, of each of 32 bytes.
void ReadFields(const uint8_t* from, int field, int width, uint8_t* codes) {
  const int mask = (1 << width) - 1;
  for (int i = 0; i < kQuantBlock; ++i) codes[i] = from[i] >> (field * width) & mask;
}

// Adds field `field` of each of 32 bytes above the low bits.
void AddFields(const uint8_t* from, int field, int width, int low_bits, uint8_t* codes) {
  const int mask = (1 << width) - 1;
  for (int i = 0; i < kQuantBlock; ++i) {
    codes[i] |= (from[i] >> (field * width) & mask) << low_bits;
  }
}

// Q4_K and Q5_K: f16 d, f16 dmin, 12 bytes of 6-bit scales and minima.
void ReadSuperScales(const uint8_t* from, int block, QuantizedElements* out) {
  const uint8_t* packed = from + 4;
  const int j = block % 4;
  const bool late = block >= 4;
  const int scale = late ? (packed[j + 8] & 15) | (packed[j] >> 6) << 4 : packed[j] & 63;
  const int minimum = late ? packed[j + 8] >> 4 | (packed[j + 4] >> 6) << 4 : packed[j + 4] & 63;
  SetScales(out, LoadHalf(from) * static_cast<float>(scale),
            LoadHalf(from + 2) * static_cast<float>(minimum));
}

void SetCodebookScales(TensorType type, const uint8_t* from, int block, QuantizedElements* out) {
  const CodebookScales scales = ReadCodebookScales(type, from);
  SetScales(out, 0);
  for (int half = 0; half < 2; ++half) {
    out->scales[half] = HalfToFloat(scales.d) * CodebookUnit(type) *
                        static_cast<float>(scales.halves[2 * block + half]);
  }
}

}  // namespace

void ReadScalesQ3K(const uint8_t* packed, int8_t scales[16]) {
  for (int i = 0; i < 16; ++i) {
    const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
    const int high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
    scales[i] = static_cast<int8_t>((low | high << 4) - 32);
  }
}

float ScaleMxfp4(uint8_t exponent) {
  const uint32_t bits = exponent < 2 ? 0x00200000u << exponent : (exponent - 1u) << 23;
  return std::bit_cast<float>(bits);
}

int CodeValue(TensorType type, int code) {
  switch (type) {
    case TensorType::kIq4Nl:
    case TensorType::kIq4Xs:
      return kIq4NlValues[code];
    case TensorType::kIq3S:
      return kIq3SValues[code];
    case TensorType::kIq3Xxs:
      return kIq3XxsValues[code];
    case TensorType::kIq2S:
    case TensorType::kIq2Xs:
    case TensorType::kIq2Xxs:
      return kIq2Values[code];
    case TensorType::kIq1S:
    case TensorType::kIq1M:
      return kIq1Values[code];
    case TensorType::kMxfp4:
      return kMxfp4Values[code];
    default:
      return code - Traits(type).code_offset;
  }
}

QuantizedElements ReadBlock(TensorType type, const uint8_t* row, int64_t index) {
  const TensorTypeTraits& traits = Traits(type);
  const int64_t blocks = traits.block_elements / kQuantBlock;  // of 32, in one of the file's
  const uint8_t* from = row + index / blocks * traits.block_bytes;
  const int b = static_cast<int>(index % blocks);
  QuantizedElements out;
  switch (type) {
    case TensorType::kQ8_0:
      SetScales(&out, LoadHalf(from));
      for (int i = 0; i < kQuantBlock; ++i) out.codes[i] = from[2 + i] ^ 0x80;
      break;
    case TensorType::kQ4_0:
    case TensorType::kIq4Nl:
      SetScales(&out, LoadHalf(from));
      ReadNibbles(from + 2, out.codes);
      break;
    case TensorType::kMxfp4:
      SetScales(&out, ScaleMxfp4(from[0]));
      ReadNibbles(from + 1, out.codes);
      break;
    case TensorType::kQ4_1:
      SetScales(&out, LoadHalf(from), -LoadHalf(from + 2));
      ReadNibbles(from + 4, out.codes);
      break;
    case TensorType::kInt4x32:
    case TensorType::kInt4x128:
      SetScales(&out, Load<float>(from), -Load<float>(from + 4));
      ReadNibbles(from + 8 + b * kHalf, out.codes);
      break;
    case TensorType::kQ5_0:
      SetScales(&out, LoadHalf(from));
      ReadNibbles(from + 6, out.codes);
      AddFifthBits(from + 2, out.codes);
      break;
    case TensorType::kQ5_1:
      SetScales(&out, LoadHalf(from), -LoadHalf(from + 2));
      ReadNibbles(from + 8, out.codes);
      AddFifthBits(from + 4, out.codes);
      break;
    case TensorType::kQ4K:
      ReadSuperScales(from, b, &out);
      ReadFields(from + 16 + b / 2 * 32, b % 2, 4, out.codes);
      break;
    case TensorType::kQ5K:
      ReadSuperScales(from, b, &out);
      ReadFields(from + 48 + b / 2 * 32, b % 2, 4, out.codes);
      AddFields(from + 16, b, 1, 4, out.codes);
      break;
    case TensorType::kQ6K:
      ReadFields(from + b / 4 * 64 + b % 2 * 32, b % 4 / 2, 4, out.codes);
      AddFields(from + 128 + b / 4 * 32, b % 4, 2, 4, out.codes);
      SetScales(&out, 0);
      for (int half = 0; half < 2; ++half) {
        const auto scale = static_cast<int8_t>(from[192 + 2 * b + half]);
        out.scales[half] = LoadHalf(from + 208) * static_cast<float>(scale);
      }
      break;
    case TensorType::kQ3K: {
      int8_t scales[16];
      ReadScalesQ3K(from + 96, scales);
      ReadFields(from + 32 + b / 4 * 32, b % 4, 2, out.codes);
      AddFields(from, b, 1, 2, out.codes);
      SetScales(&out, 0);
      for (int half = 0; half < 2; ++half) {
        out.scales[half] = LoadHalf(from + 108) * static_cast<float>(scales[2 * b + half]);
      }
      break;
    }
    case TensorType::kQ2K:
      ReadFields(from + 16 + b / 4 * 32, b % 4, 2, out.codes);
      for (int half = 0; half < 2; ++half) {
        const uint8_t both = from[2 * b + half];
        out.scales[half] = LoadHalf(from + 80) * static_cast<float>(both & 15);
        out.minima[half] = LoadHalf(from + 82) * static_cast<float>(both >> 4);
      }
      break;
    case TensorType::kIq4Xs:
    case TensorType::kIq3S:
    case TensorType::kIq3Xxs:
    case TensorType::kIq2S:
    case TensorType::kIq2Xs:
    case TensorType::kIq2Xxs:
    case TensorType::kIq1S:
    case TensorType::kIq1M:
      SetCodebookScales(type, from, b, &out);
      ReadCodebookCodes(type, from, b, out.codes);
      break;
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBf16:
    case TensorType::kFp8E4m3:
    case TensorType::kU8:
    case TensorType::kI32:
    case TensorType::kI64:
      SetScales(&out, 0);  // nobody asks for these
      std::memset(out.codes, 0, sizeof(out.codes));
      break;
  }
  return out;
}

void Dequantize(TensorType type, absl::Span<const uint8_t> bytes, absl::Span<float> values) {
  const TensorTypeTraits& traits = Traits(type);
  if (!traits.quantized) {
    for (size_t i = 0; i < bytes.size() / traits.block_bytes; ++i) {
      values[i] = LoadFloat(type, &bytes[i * traits.block_bytes]);
    }
    return;
  }
  const size_t blocks = bytes.size() / traits.block_bytes * (traits.block_elements / kQuantBlock);
  float* out = values.data();
  for (size_t i = 0; i < blocks; ++i, out += kQuantBlock) {
    const QuantizedElements block = ReadBlock(type, bytes.data(), static_cast<int64_t>(i));
    for (int j = 0; j < kQuantBlock; ++j) {
      const float scaled =
          static_cast<float>(CodeValue(type, block.codes[j])) * block.scales[j / kHalf];
      out[j] = scaled - block.minima[j / kHalf];
    }
  }
}

}  // namespace millrace
