#include "formats/tensors/codebook_blocks.h"

#include <bit>
#include <cstring>

namespace millrace {
namespace {

#define MILLRACE_IQ_GRID constexpr
#include "formats/tensors/iq_grids.inc"
#undef MILLRACE_IQ_GRID

template <typename T>
T Load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

int Nibble(const uint8_t* from, int index) { return from[index / 2] >> (index % 2 * 4) & 15; }

// Puts 8 codes, whose levels a lattice's point has in fields of `width` bits. Bit j of `signs` goes
// to code j.
template <int kWidth, int kCount>
void PutPoint(uint16_t point, int signs, uint8_t* codes) {
  for (int j = 0; j < kCount; ++j) {
    const int level = point >> (kWidth * j) & ((1 << kWidth) - 1);
    codes[j] = static_cast<uint8_t>(level | (signs >> j & 1) << 3);
  }
}

// The signs of 8 elements of which 7 are stored: an even number of them is negative.
int EvenSigns(uint32_t seven) { return static_cast<int>(seven | (std::popcount(seven) & 1u) << 7); }

void ReadIq2Xxs(const uint8_t* block, int part, uint8_t* codes) {
  const uint8_t* const from = block + 2 + 8 * part;
  const auto signs = Load<uint32_t>(from + 4);
  for (int k = 0; k < 4; ++k) {
    PutPoint<2, 8>(kIq2XxsGrid[from[k]], EvenSigns(signs >> (7 * k) & 127), codes + 8 * k);
  }
}

void ReadIq2Xs(const uint8_t* block, int part, uint8_t* codes) {
  for (int k = 0; k < 4; ++k) {
    const auto both = Load<uint16_t>(block + 2 + 8 * part + 2 * k);
    PutPoint<2, 8>(kIq2XsGrid[both & 511], EvenSigns(both >> 9), codes + 8 * k);
  }
}

void ReadIq2S(const uint8_t* block, int part, uint8_t* codes) {
  for (int k = 0; k < 4; ++k) {
    const int at = 4 * part + k;
    const int index = block[2 + at] | (block[66 + part] >> (2 * k) & 3) << 8;
    PutPoint<2, 8>(kIq2SGrid[index], block[34 + at], codes + 8 * k);
  }
}

void ReadIq3Xxs(const uint8_t* block, int part, uint8_t* codes) {
  const auto signs = Load<uint32_t>(block + 66 + 4 * part);
  for (int k = 0; k < 8; ++k) {
    const int eight = EvenSigns(signs >> (7 * (k / 2)) & 127);
    PutPoint<3, 4>(kIq3XxsGrid[block[2 + 8 * part + k]], eight >> (k % 2 * 4), codes + 4 * k);
  }
}

void ReadIq3S(const uint8_t* block, int part, uint8_t* codes) {
  for (int k = 0; k < 8; ++k) {
    const int index = block[2 + 8 * part + k] | (block[66 + part] >> k & 1) << 8;
    PutPoint<3, 4>(kIq3SGrid[index], Nibble(block + 74 + 4 * part, k), codes + 4 * k);
  }
}

void ReadIq1S(const uint8_t* block, int part, uint8_t* codes) {
  const auto high = Load<uint16_t>(block + 34 + 2 * part);
  for (int k = 0; k < 4; ++k) {
    const int index = block[2 + 4 * part + k] | (high >> (3 * k) & 7) << 8;
    PutPoint<2, 8>(kIq1Grid[index], (high & 0x8000) != 0 ? 255 : 0, codes + 8 * k);
  }
}

void ReadIq1M(const uint8_t* block, int part, uint8_t* codes) {
  for (int k = 0; k < 4; ++k) {
    const int high = Nibble(block + 32 + 2 * part, k);
    const int index = block[4 * part + k] | (high & 7) << 8;
    PutPoint<2, 8>(kIq1Grid[index], (high & 8) != 0 ? 255 : 0, codes + 8 * k);
  }
}

// The 6-bit scale of a part: four bits of each beside each other, then two bits of each.
int ScaleIq4Xs(const uint8_t* block, int part) {
  return (Nibble(block + 4, part) | (Load<uint16_t>(block + 2) >> (2 * part) & 3) << 4) - 32;
}

int ScaleOf(TensorType type, const uint8_t* block, int half) {
  const int part = half / 2;
  switch (type) {
    case TensorType::kIq4Xs:
      return ScaleIq4Xs(block, part);
    case TensorType::kIq3S:
      return 2 * Nibble(block + 106, part) + 1;
    case TensorType::kIq3Xxs:
      return static_cast<int>(2 * (Load<uint32_t>(block + 66 + 4 * part) >> 28) + 1);
    case TensorType::kIq2S:
      return 2 * Nibble(block + 74, half) + 1;
    case TensorType::kIq2Xs:
      return 2 * Nibble(block + 66, half) + 1;
    case TensorType::kIq2Xxs:
      return static_cast<int>(2 * (Load<uint32_t>(block + 6 + 8 * part) >> 28) + 1);
    case TensorType::kIq1S:
      return 2 * (Load<uint16_t>(block + 34 + 2 * part) >> 12 & 7) + 1;
    default:  // IQ1_M
      return 2 * (Load<uint16_t>(block + 48 + half / 4 * 2) >> (half % 4 * 3) & 7) + 1;
  }
}

}  // namespace

CodebookScales ReadCodebookScales(TensorType type, const uint8_t* block) {
  CodebookScales scales;
  scales.d = Load<uint16_t>(block);
  if (type == TensorType::kIq1M) {  // it has the upper four bits of each word of scales
    scales.d = 0;
    for (int i = 0; i < 4; ++i) {
      scales.d |= static_cast<uint16_t>(Load<uint16_t>(block + 48 + 2 * i) >> 12 << (4 * i));
    }
  }
  for (int half = 0; half < 16; ++half) {
    scales.halves[half] = static_cast<int8_t>(ScaleOf(type, block, half));
  }
  return scales;
}

void ReadCodebookCodes(TensorType type, const uint8_t* block, int part, uint8_t codes[32]) {
  switch (type) {
    case TensorType::kIq4Xs:
      for (int i = 0; i < 16; ++i) {
        codes[i] = block[8 + 16 * part + i] & 15;
        codes[i + 16] = block[8 + 16 * part + i] >> 4;
      }
      return;
    case TensorType::kIq3S:
      return ReadIq3S(block, part, codes);
    case TensorType::kIq3Xxs:
      return ReadIq3Xxs(block, part, codes);
    case TensorType::kIq2S:
      return ReadIq2S(block, part, codes);
    case TensorType::kIq2Xs:
      return ReadIq2Xs(block, part, codes);
    case TensorType::kIq2Xxs:
      return ReadIq2Xxs(block, part, codes);
    case TensorType::kIq1S:
      return ReadIq1S(block, part, codes);
    default:
      return ReadIq1M(block, part, codes);
  }
}

float CodebookUnit(TensorType type) {
  switch (type) {
    case TensorType::kIq3Xxs:
      return 1.0f / kIq3XxsDivisor;
    case TensorType::kIq2S:
    case TensorType::kIq2Xs:
    case TensorType::kIq2Xxs:
      return 1.0f / kIq2Divisor;
    case TensorType::kIq1S:
    case TensorType::kIq1M:
      return 1.0f / kIq1Divisor;
    default:
      return 1;
  }
}

}  // namespace millrace
