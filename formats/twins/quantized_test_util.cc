#include "formats/twins/quantized_test_util.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "formats/tensors/codebook_blocks.h"
#include "formats/tensors/dequantize.h"
#include "formats/tensors/float16.h"

namespace millrace {
namespace {

using Bytes = std::vector<uint8_t>;

// Where each bit of each element's code lies: found by setting one bit of a block after the other.
struct CodeBit {
  int element;
  int bit;
};
const std::map<int, CodeBit>& CodeBits(TensorType type) {
  static auto* const all = new std::map<TensorType, std::map<int, CodeBit>>;
  if (const auto found = all->find(type); found != all->end()) return found->second;
  const TensorTypeTraits& traits = Traits(type);
  std::map<int, CodeBit>& bits = (*all)[type];
  Bytes block(traits.block_bytes);
  const auto codes = [&] {
    Bytes codes;
    for (int b = 0; b < traits.block_elements / kQuantBlock; ++b) {
      const QuantizedElements read = ReadBlock(type, block.data(), b);
      codes.insert(codes.end(), read.codes, read.codes + kQuantBlock);
    }
    return codes;
  };
  const Bytes none = codes();
  for (int bit = 0; bit < traits.block_bytes * 8; ++bit) {
    block[bit / 8] = static_cast<uint8_t>(1 << bit % 8);
    const Bytes some = codes();
    block[bit / 8] = 0;
    for (int i = 0; i < traits.block_elements; ++i) {
      if (some[i] != none[i]) bits[bit] = {i, std::countr_zero<uint8_t>(some[i] ^ none[i])};
    }
  }
  return bits;
}

int MaxCode(TensorType type) {
  int bits = 0;
  for (const auto& [at, code] : CodeBits(type)) bits = std::max(bits, code.bit + 1);
  return (1 << bits) - 1;
}

void PutHalf(float value, uint8_t* to) {
  const uint16_t half = FloatToHalf(value);
  std::memcpy(to, &half, sizeof(half));
}

struct Range {
  float low, high, magnitude;
};
std::vector<Range> Ranges(absl::Span<const float> values, int size) {
  std::vector<Range> ranges;
  for (size_t i = 0; i < values.size(); i += size) {
    const auto [low, high] = std::minmax_element(values.begin() + i, values.begin() + i + size);
    ranges.push_back({std::min(0.0f, *low), *high, std::max(std::fabs(*low), std::fabs(*high))});
  }
  return ranges;
}

// Steps of a number in units of the largest one's share: round(x / largest * steps).
std::vector<int> Steps(const std::vector<float>& numbers, int steps, float* unit) {
  *unit = *std::max_element(numbers.begin(), numbers.end()) / static_cast<float>(steps);
  std::vector<int> out;
  for (const float number : numbers) {
    out.push_back(*unit == 0 ? 0 : static_cast<int>(std::nearbyint(number / *unit)));
  }
  return out;
}

void PackSuperScales(const std::vector<int>& scales, const std::vector<int>& minima, uint8_t* to) {
  for (int j = 0; j < 4; ++j) {
    to[j] = static_cast<uint8_t>(scales[j] | (scales[j + 4] >> 4) << 6);
    to[j + 4] = static_cast<uint8_t>(minima[j] | (minima[j + 4] >> 4) << 6);
    to[j + 8] = static_cast<uint8_t>((scales[j + 4] & 15) | (minima[j + 4] & 15) << 4);
  }
}

// A block's scales, and minima where the kind has them.
void PutScales(TensorType type, absl::Span<const float> values, uint8_t* to) {
  const int max_code = MaxCode(type);
  const int elements = Traits(type).block_elements;
  const bool by_32 =
      type == TensorType::kQ4K || type == TensorType::kQ5K || type == TensorType::kIq4Xs;
  const int sub_block = by_32 ? 32 : elements == 256 ? 16 : elements;
  std::vector<float> spans, magnitudes, minima;
  for (const Range& range : Ranges(values, sub_block)) {
    spans.push_back((range.high - range.low) / static_cast<float>(max_code));
    magnitudes.push_back(range.magnitude);
    minima.push_back(-range.low);
  }
  const auto most = static_cast<float>(CodeValue(type, max_code));  // that a code counts
  for (float& magnitude : magnitudes) magnitude /= most;
  float d, dmin;
  switch (type) {
    case TensorType::kQ4_0:
    case TensorType::kQ5_0:
    case TensorType::kIq4Nl:
      return PutHalf(magnitudes[0], to);
    case TensorType::kMxfp4: {
      // The scale of the last code, -12; the next power of two above.
      *to = static_cast<uint8_t>(std::clamp(
          128 + static_cast<int>(std::ceil(std::log2(-magnitudes[0] + 1e-30f))), 0, 254));
      return;
    }
    case TensorType::kInt4x32:
    case TensorType::kInt4x128: {
      const float numbers[2] = {spans[0], -minima[0]};
      std::memcpy(to, numbers, sizeof(numbers));
      return;
    }
    case TensorType::kQ5_1:
      PutHalf(spans[0], to);
      return PutHalf(-minima[0], to + 2);
    case TensorType::kQ4K:
    case TensorType::kQ5K: {
      const std::vector<int> scales = Steps(spans, 63, &d);
      PackSuperScales(scales, Steps(minima, 63, &dmin), to + 4);
      PutHalf(d, to);
      return PutHalf(dmin, to + 2);
    }
    case TensorType::kIq4Xs: {
      for (float& magnitude : magnitudes) magnitude = std::fabs(magnitude);
      const std::vector<int> scales = Steps(magnitudes, 31, &d);
      for (int part = 0; part < 8; ++part) {
        const int scale = scales[part] + 32;
        to[4 + part / 2] |= static_cast<uint8_t>((scale & 15) << (part % 2 * 4));
        to[2 + part / 4] |= static_cast<uint8_t>((scale >> 4) << (part % 4 * 2));
      }
      return PutHalf(d, to);
    }
    case TensorType::kQ6K: {
      const std::vector<int> scales = Steps(magnitudes, 127, &d);
      for (int i = 0; i < 16; ++i) to[192 + i] = static_cast<uint8_t>(scales[i]);
      return PutHalf(d, to + 208);
    }
    case TensorType::kQ3K: {
      const std::vector<int> scales = Steps(magnitudes, 31, &d);
      for (int i = 0; i < 16; ++i) {
        const int scale = scales[i] + 32;
        to[96 + i % 8] |= static_cast<uint8_t>((scale & 15) << (i < 8 ? 0 : 4));
        to[104 + i % 4] |= static_cast<uint8_t>((scale >> 4) << (2 * (i / 4)));
      }
      return PutHalf(d, to + 108);
    }
    default: {  // Q2_K
      const std::vector<int> scales = Steps(spans, 15, &d);
      const std::vector<int> lows = Steps(minima, 15, &dmin);
      for (int i = 0; i < 16; ++i) to[i] = static_cast<uint8_t>(scales[i] | lows[i] << 4);
      PutHalf(d, to + 80);
      return PutHalf(dmin, to + 82);
    }
  }
}

bool IsLattice(TensorType type) { return type >= TensorType::kIq3S && type <= TensorType::kIq1M; }

// Which of the eight parts of a lattice's block a bit belongs to. The bits of d are left out.
std::vector<std::pair<int, int>> PartsOfBits(TensorType type) {
  const auto read = [type](const Bytes& block, int part) {
    std::array<uint8_t, kQuantBlock + 2> all{};
    ReadCodebookCodes(type, block.data(), part, all.data());
    const CodebookScales scales = ReadCodebookScales(type, block.data());
    all[kQuantBlock] = static_cast<uint8_t>(scales.halves[2 * part]);
    all[kQuantBlock + 1] = static_cast<uint8_t>(scales.halves[2 * part + 1]);
    return all;
  };
  std::vector<std::pair<int, int>> bits;
  const Bytes none(Traits(type).block_bytes);
  Bytes block = none;
  for (int bit = 0; bit < Traits(type).block_bytes * 8; ++bit) {
    block[bit / 8] = static_cast<uint8_t>(1 << bit % 8);
    for (int part = 0; part < 8; ++part) {
      if (read(block, part) != read(none, part)) bits.emplace_back(bit, part);
    }
    block[bit / 8] = 0;
  }
  return bits;
}

// Flips bits of indices, signs and scales as long as that lowers the error, in a few rounds: a
// crude encoder for any lattice.
std::string EncodeLattice(TensorType type, absl::Span<const float> values) {
  static auto* const all_bits = new std::map<TensorType, std::vector<std::pair<int, int>>>;
  std::vector<std::pair<int, int>>& bits = (*all_bits)[type];
  if (bits.empty()) bits = PartsOfBits(type);
  Bytes block(Traits(type).block_bytes);
  const bool three = type == TensorType::kIq1S || type == TensorType::kIq1M;  // bits of a scale
  float largest = 0;
  for (int code = 0; code < 16; ++code) {
    largest = std::max(largest, std::fabs(static_cast<float>(CodeValue(type, code))));
  }
  const float d = Ranges(values, 256)[0].magnitude /
                  (largest * CodebookUnit(type) * static_cast<float>(three ? 15 : 31));
  if (type == TensorType::kIq1M) {
    const uint16_t half = FloatToHalf(d);
    for (int i = 0; i < 4; ++i) block[49 + 2 * i] = static_cast<uint8_t>((half >> (4 * i)) << 4);
  } else {
    PutHalf(d, block.data());
  }
  const auto error = [&](int part) {
    const QuantizedElements read = ReadBlock(type, block.data(), part);
    float sum = 0;
    for (int i = 0; i < kQuantBlock; ++i) {
      const float value = static_cast<float>(CodeValue(type, read.codes[i])) * read.scales[i / 16];
      sum += std::pow(value - values[part * kQuantBlock + i], 2.0f);
    }
    return sum;
  };
  float errors[8];
  for (int part = 0; part < 8; ++part) errors[part] = error(part);
  for (int round = 0; round < 3; ++round) {
    for (const auto& [bit, part] : bits) {
      block[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      const float flipped = error(part);
      if (flipped < errors[part]) {
        errors[part] = flipped;
      } else {
        block[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      }
    }
  }
  return {block.begin(), block.end()};
}

}  // namespace

std::string EncodeQuantized(TensorType type, absl::Span<const float> values) {
  if (IsLattice(type)) return EncodeLattice(type, values);
  Bytes block(Traits(type).block_bytes);
  PutScales(type, values, block.data());
  std::vector<int> codes;
  const int max_code = MaxCode(type);
  for (size_t i = 0; i < values.size(); ++i) {
    const QuantizedElements read =
        ReadBlock(type, block.data(), static_cast<int64_t>(i) / kQuantBlock);
    const auto at = i % kQuantBlock / 16;
    const auto error = [&](int code) {
      return std::fabs(static_cast<float>(CodeValue(type, code)) * read.scales[at] -
                       read.minima[at] - values[i]);
    };
    int best = 0;
    for (int code = 1; code <= max_code; ++code) {
      if (error(code) < error(best)) best = code;
    }
    codes.push_back(best);
  }
  for (const auto& [bit, code] : CodeBits(type)) {
    if ((codes[code.element] >> code.bit & 1) != 0) {
      block[bit / 8] |= static_cast<uint8_t>(1 << bit % 8);
    }
  }
  return {block.begin(), block.end()};
}

}  // namespace millrace
