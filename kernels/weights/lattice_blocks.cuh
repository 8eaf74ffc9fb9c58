// Device code that reads ggml's IQ types, whose elements are points of lattices
// (formats/tensors/codebook_blocks.h): the same as stored_blocks.cuh does for the others.
#ifndef MILLRACE_KERNELS_WEIGHTS_LATTICE_BLOCKS_CUH_
#define MILLRACE_KERNELS_WEIGHTS_LATTICE_BLOCKS_CUH_

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/weights/stored_blocks.cuh"

namespace millrace::kernels {

#define MILLRACE_IQ_GRID static __device__ const
#include "formats/tensors/iq_grids.inc"
#undef MILLRACE_IQ_GRID

__device__ inline uint32_t Load16(const uint8_t* from) { return from[0] | from[1] << 8; }
__device__ inline uint32_t Load32(const uint8_t* from) {
  return Load16(from) | Load16(from + 2) << 16;
}
__device__ inline int NibbleAt(const uint8_t* from, int index) {
  return from[index / 2] >> (index % 2 * 4) & 15;
}

// The signs of 8 elements of which 7 are stored: an even number of them is negative.
__device__ inline uint32_t EvenSigns(uint32_t seven) { return seven | (__popc(seven) & 1) << 7; }

// Codes [begin, begin + kCount): the levels of a lattice's point, `kWidth` bits each, with a sign.
template <int kWidth, int kCount>
__device__ inline void PutPoint(uint32_t point, uint32_t signs, int begin, EightCodes& eight) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    eight.codes[begin + j] = (point >> (kWidth * j) & ((1 << kWidth) - 1)) | (signs >> j & 1) << 3;
  }
}

// A block's number times an odd scale, over a power of two.
template <int kDivisor>
__device__ inline float OddScale(const uint8_t* d, uint32_t scale) {
  return HalfAt(d) * static_cast<float>(2 * scale + 1) / kDivisor;
}

struct Iq4Xs {
  static constexpr int kElements = 256, kBytes = 136;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    const int part = first / 32;
    const int scale = NibbleAt(block + 4, part) | (Load16(block + 2) >> (2 * part) & 3) << 4;
    EightCodes eight(HalfAt(block) * static_cast<float>(scale - 32));
    eight.AddFields<uint8_t>(block + 8 + 16 * part + first % 16, first / 16 % 2 * 4, 4, 0);
    return eight;
  }
  static __device__ float Value(uint32_t code) { return Iq4Nl::Value(code); }
};

// Two points of four elements each: of `first`'s place, and behind it.
struct Iq3S {
  static constexpr int kElements = 256, kBytes = 110;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    const int part = first / 32;
    EightCodes eight(OddScale<1>(block, NibbleAt(block + 106, part)));
    const uint32_t signs = block[74 + first / 8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int k = first / 4 + half;
      const uint32_t index = block[2 + k] | (block[66 + part] >> (k % 8) & 1) << 8;
      PutPoint<3, 4>(kIq3SGrid[index], signs >> (4 * half), 4 * half, eight);
    }
    return eight;
  }
  static __device__ float Value(uint32_t code) {
    const float level = static_cast<float>(2 * (code & 7) + 1);
    return code < 8 ? level : -level;
  }
};

struct Iq3Xxs {
  static constexpr int kElements = 256, kBytes = 98;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    const uint32_t both = Load32(block + 66 + 4 * (first / 32));
    EightCodes eight(OddScale<4>(block, both >> 28));
    const uint32_t signs = EvenSigns(both >> (7 * (first / 8 % 4)) & 127);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      PutPoint<3, 4>(kIq3XxsGrid[block[2 + first / 4 + half]], signs >> (4 * half), 4 * half,
                     eight);
    }
    return eight;
  }
  static __device__ float Value(uint32_t code) {
    const int level = static_cast<int>(code & 7);
    const float value = static_cast<float>(level == 7 ? 62 : 8 * level + 4);
    return code < 8 ? value : -value;
  }
};

struct Iq2Values {
  static __device__ float Value(uint32_t code) {
    const uint32_t level = code & 7;
    const float value = level == 0 ? 8.0f : level == 1 ? 25.0f : 43.0f;
    return code < 8 ? value : -value;
  }
};

struct Iq2S : Iq2Values {
  static constexpr int kElements = 256, kBytes = 82;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    const int k = first / 8;
    EightCodes eight(OddScale<8>(block, NibbleAt(block + 74, first / 16)));
    const uint32_t index = block[2 + k] | (block[66 + first / 32] >> (2 * (k % 4)) & 3) << 8;
    PutPoint<2, 8>(kIq2SGrid[index], block[34 + k], 0, eight);
    return eight;
  }
};

struct Iq2Xs : Iq2Values {
  static constexpr int kElements = 256, kBytes = 74;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    EightCodes eight(OddScale<8>(block, NibbleAt(block + 66, first / 16)));
    const uint32_t both = Load16(block + 2 + first / 4);
    PutPoint<2, 8>(kIq2XsGrid[both & 511], EvenSigns(both >> 9), 0, eight);
    return eight;
  }
};

struct Iq2Xxs : Iq2Values {
  static constexpr int kElements = 256, kBytes = 66;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    const uint8_t* const from = block + 2 + 8 * (first / 32);
    const uint32_t both = Load32(from + 4);
    const int k = first / 8 % 4;
    EightCodes eight(OddScale<8>(block, both >> 28));
    PutPoint<2, 8>(kIq2XxsGrid[from[k]], EvenSigns(both >> (7 * k) & 127), 0, eight);
    return eight;
  }
};

// Eights of a level of -1, 0 or 1, and an eighth more or less.
struct Iq1Values {
  static __device__ float Value(uint32_t code) {
    const int level = 8 * (static_cast<int>(code & 7) - 1);
    return static_cast<float>(code < 8 ? level + 1 : level - 1);
  }
};

struct Iq1S : Iq1Values {
  static constexpr int kElements = 256, kBytes = 50;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    const uint32_t high = Load16(block + 34 + 2 * (first / 32));
    EightCodes eight(OddScale<8>(block, high >> 12 & 7));
    const int k = first / 8;
    const uint32_t index = block[2 + k] | (high >> (3 * (k % 4)) & 7) << 8;
    PutPoint<2, 8>(kIq1Grid[index], (high & 0x8000) != 0 ? 255 : 0, 0, eight);
    return eight;
  }
};

struct Iq1M : Iq1Values {
  static constexpr int kElements = 256, kBytes = 56;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    // The upper four bits of each word of scales are the block's number.
    uint32_t d = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) d |= Load16(block + 48 + 2 * i) >> 12 << (4 * i);
    const int half = first / 16;
    const uint32_t scale = Load16(block + 48 + half / 4 * 2) >> (half % 4 * 3) & 7;
    const uint16_t number = static_cast<uint16_t>(d);
    EightCodes eight(OddScale<8>(reinterpret_cast<const uint8_t*>(&number), scale));
    const int k = first / 8;
    const uint32_t high = NibbleAt(block + 32, k);
    PutPoint<2, 8>(kIq1Grid[block[k] | (high & 7) << 8], (high & 8) != 0 ? 255 : 0, 0, eight);
    return eight;
  }
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_WEIGHTS_LATTICE_BLOCKS_CUH_
