#include "executors/cpu/kernels/tile_block.h"

#include <cstring>

#include "formats/tensors/float16.h"

namespace millrace::cpu {
namespace {

constexpr int kHalf = kBlock / 2;

const TileLayout& Layout(TileKind kind) { return kTileLayouts[static_cast<int>(kind)]; }

uint16_t Load16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

float LoadFloat(const uint8_t* from) {
  float value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

float LoadHalf(const uint8_t* from) { return HalfToFloat(Load16(from)); }

// Returns the value of an element's code.
int Value(TileKind kind, int code) {
  switch (kind) {
    case TileKind::kQ3K:
      return code - 4;
    case TileKind::kQ4_0:
      return code - 8;
    case TileKind::kQ5_0:
      return code - 16;
    case TileKind::kQ6K:
      return code - 32;
    case TileKind::kQ8_0:
      return code - 128;
    case TileKind::kIq4Nl:
    case TileKind::kIq4Xs:
      return kIq4NlTable[code] - 128;
    case TileKind::kIq3S:
      return kIq3STable[code] - 128;
    case TileKind::kIq3Xxs:
      return kIq3XxsTable[code] - 128;
    case TileKind::kIq2:
      return kIq2Table[code] - 128;
    case TileKind::kIq1:
      return kIq1Table[code] - 128;
    case TileKind::kMxfp4:
      return kMxfp4Table[code] - 128;
    default:
      return code;
  }
}

float Divisor(TileKind kind) {
  switch (kind) {
    case TileKind::kIq3Xxs:
      return kIq3XxsDivisor;
    case TileKind::kIq2:
      return kIq2Divisor;
    case TileKind::kIq1:
      return kIq1Divisor;
    default:
      return 1;
  }
}

int Code(TileKind kind, const uint8_t* codes, int element, int row) {
  const int j = element / 4;
  const int b = element % 4;
  if (kind == TileKind::kQ8_0) return codes[64 * j + 4 * row + b];
  const uint8_t both = codes[64 * (j % 4) + 4 * row + b];
  const int low = j < 4 ? both & 15 : both >> 4;
  if (kind == TileKind::kQ5_0 || kind == TileKind::kQ5_1 || kind == TileKind::kQ5K) {
    return low | (codes[256 + 4 * row + b] >> j & 1) << 4;
  }
  if (kind == TileKind::kQ6K) {
    return low | (codes[256 + 64 * (j / 4) + 4 * row + b] >> (2 * (j % 4)) & 3) << 4;
  }
  return low;
}

// Byte `index` of a row's bytes, which lie in dwords of 16 rows.
uint8_t HeaderByte(const uint8_t* dwords, int index, int row) {
  return dwords[index / 4 * 64 + 4 * row + index % 4];
}

struct ScaleAndMinimum {
  float scale;
  float minimum = 0;
};

ScaleAndMinimum SuperScale(const uint8_t* header, int block, int row) {
  const auto byte = [&](int index) { return HeaderByte(header + 64, index, row); };
  const int j = block % 4;
  const bool late = block >= 4;
  const int scale = late ? (byte(j + 8) & 15) | (byte(j) >> 6) << 4 : byte(j) & 63;
  const int minimum = late ? byte(j + 8) >> 4 | (byte(j + 4) >> 6) << 4 : byte(j + 4) & 63;
  return {LoadHalf(header + 2 * row) * static_cast<float>(scale),
          LoadHalf(header + 32 + 2 * row) * static_cast<float>(minimum)};
}

ScaleAndMinimum ReadScale(TileKind kind, const uint8_t* header, int block, int half, int row) {
  const uint8_t* number = header + 32 * block + 2 * row;
  switch (kind) {
    case TileKind::kQ4_1:
    case TileKind::kQ5_1:
      return {LoadHalf(header + 2 * row), -LoadHalf(header + 32 + 2 * row)};
    case TileKind::kInt4x32:
    case TileKind::kInt4x128:
      return {LoadFloat(header + 4 * row), -LoadFloat(header + 64 + 4 * row)};
    case TileKind::kMxfp4:
      return {Bf16ToFloat(Load16(number))};
    case TileKind::kQ4K:
    case TileKind::kQ5K:
      return SuperScale(header, block, row);
    case TileKind::kQ3K:
    case TileKind::kQ6K:
    case TileKind::kIq4Xs:
    case TileKind::kIq3S:
    case TileKind::kIq3Xxs:
    case TileKind::kIq2:
    case TileKind::kIq1: {
      const auto scale = static_cast<int8_t>(HeaderByte(header + 64, 2 * block + half, row));
      return {LoadHalf(header + 2 * row) / Divisor(kind) * static_cast<float>(scale)};
    }
    case TileKind::kQ2K: {
      const uint8_t both = HeaderByte(header + 64, 2 * block + half, row);
      return {LoadHalf(header + 2 * row) * static_cast<float>(both & 15),
              LoadHalf(header + 32 + 2 * row) * static_cast<float>(both >> 4)};
    }
    default:
      return {LoadHalf(number)};
  }
}

}  // namespace

size_t GroupOffset(TileKind kind, int block) {
  const TileLayout& layout = Layout(kind);
  return static_cast<size_t>(block / layout.group) * (layout.header + layout.group * layout.codes);
}

size_t CodesOffset(TileKind kind, int block) {
  const TileLayout& layout = Layout(kind);
  return GroupOffset(kind, block) + layout.header +
         static_cast<size_t>(block % layout.group) * layout.codes;
}

void ReadTileBlock(TileKind kind, const uint8_t* tile, int block, int first_row, int end_row,
                   TileBlock* out) {
  const uint8_t* header = tile + GroupOffset(kind, block);
  const uint8_t* codes = tile + CodesOffset(kind, block);
  for (int row = first_row; row < end_row; ++row) {
    for (int half = 0; half < kBlock / kHalf; ++half) {
      const ScaleAndMinimum numbers =
          ReadScale(kind, header, block % Layout(kind).group, half, row);
      out->scales[half][row] = numbers.scale;
      out->minima[half][row] = numbers.minimum;
    }
    for (int i = 0; i < kBlock; ++i) out->values[i][row] = Value(kind, Code(kind, codes, i, row));
  }
}

}  // namespace millrace::cpu
