// Device code of four_bit.h's layout: where a code lies, and a weight's value.
//
// Thread t of a warp group (warp w = t / 32, lane l = t % 32) holds of each 16 columns, as wgmma's
// and mma.sync's first operand, the rows r = 16 w + l / 4 and r + 8 and the columns c = 2 (l % 4),
// c + 1, c + 8 and c + 9: four pairs of neighbouring columns, (r, c), (r + 8, c), (r, c + 8) and
// (r + 8, c + 8). The eight codes are one word. Words of 16 columns j = 0 ... 7 of a block lie at
// 2048 (j / 4) + 16 t + 4 (j % 4). Where the codes lie in their word makes unpacking cheap.
#ifndef MILLRACE_KERNELS_GEMM_FOUR_BIT_CUH_
#define MILLRACE_KERNELS_GEMM_FOUR_BIT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/four_bit.h"

namespace millrace::kernels {

// Returns the bits of two codes in a word: pair `pair` (0 to 3) of the codes of columns c and c
// + 1. Integers: four bits at 4 pair, and at 16 + 4 pair. kMxfp4: the sign and the three other bits
// (magnitude) lie as far apart as in BF16, so that shifts bring them to their places together; the
// fourth pair takes what bits are left.
__host__ __device__ inline uint32_t PackFourBit(FourBitType type, int pair, uint32_t first,
                                                uint32_t second) {
  const uint32_t both[2] = {first & 15, second & 15};
  uint32_t word = 0;
  for (int i = 0; i < 2; ++i) {
    const uint32_t code = both[i], sign = code >> 3, magnitude = code & 7;
    uint32_t bits;
    if (type != FourBitType::kMxfp4) {
      bits = code << (4 * pair);
    } else if (pair < 3) {
      bits = (sign << 15 | magnitude << 6) >> (3 * pair);
    } else {
      bits = sign << 14 | (magnitude >> 2) << 13 | (magnitude & 3) << 10;
    }
    word |= bits << (16 * i);
  }
  return word;
}

#if defined(__CUDACC__)

// Arithmetic on pairs of BF16, each result rounded once to nearest even.
__device__ inline uint32_t MultiplyPairs(uint32_t a, uint32_t b) {
  uint32_t product = 0;
#if __CUDA_ARCH__ >= 900
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
#endif
  return product;
}
__device__ inline uint32_t MultiplyAddPairs(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t sum = 0;
#if __CUDA_ARCH__ >= 900
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
#endif
  return sum;
}
// Returns the 16 bits twice.
__device__ inline uint32_t Twice(uint32_t bits) { return bits * 0x00010001u; }

// Returns the upper 16 bits twice.
__device__ inline uint32_t UpperTwice(uint32_t bits) { return __byte_perm(bits, 0, 0x3232); }

// Integers are unpacked without conversions. In the lowest eight bits of a BF16, the subnormal ones
// and those of the smallest exponent, a code counts in steps of one size: at bit 0 it is code *
// 2^-133, at bit 4 code * 2^-129. A product by a power of two makes code / 128 of both, exactly.
inline constexpr float kCodeSteps = 128;
__device__ inline uint32_t CodeFactor(int pair) {
  return pair % 2 == 0 ? 0x7e807e80 : 0x7c807c80;  // 2^126 or 2^122, twice
}

// Returns the codes of a pair of a word of integers as CodeFactor takes them.
__device__ inline uint32_t CodesOf(uint32_t word, int pair) {
  return (pair < 2 ? word : word >> 8) & (pair % 2 == 0 ? 0x000f000f : 0x00f000f0);
}

// Returns the upper 16 bits of a float, which are a BF16, twice.
__device__ inline uint32_t UpperTwice(float value) { return UpperTwice(__float_as_uint(value)); }

// A group's scale and zero point for one row, as two equal BF16 each. kType is the scale's: an
// FP16's 11 bits are the sum of two BF16, its first 8 and the other 3.
template <FourBitScale kType>
struct Int4Scale {
  uint32_t high, low;  // times 128
  uint32_t zero;       // negated, by 128

  __device__ static Int4Scale Read(uint32_t stored) {
    const uint32_t zero = UpperTwice(stored);
    if constexpr (kType == FourBitScale::kBf16) {
      return {UpperTwice(__uint_as_float(stored << 16) * kCodeSteps), 0, zero};
    }
    const float scale = __half2float(__ushort_as_half(static_cast<uint16_t>(stored))) * kCodeSteps;
    const float high = __uint_as_float(__float_as_uint(scale) & 0xffff0000);
    return {UpperTwice(high), UpperTwice(scale - high), zero};
  }

  // Returns two weights of CodesOf. All but the last step is exact: the difference has 5 bits, its
  // product with `low` at most 8.
  __device__ uint32_t Values(uint32_t codes, uint32_t factor) const {
    const uint32_t steps = MultiplyAddPairs(codes, factor, zero);
    if constexpr (kType == FourBitScale::kBf16) return MultiplyPairs(steps, high);
    return MultiplyAddPairs(steps, high, MultiplyPairs(steps, low));
  }
};

// A group's scale and minimum for one row, as two equal BF16 each.
struct Int4Line {
  uint32_t scale, minimum;  // the scale times 128

  __device__ static Int4Line Read(uint32_t stored) {
    return {UpperTwice(__uint_as_float(stored << 16) * kCodeSteps), UpperTwice(stored)};
  }
  // Returns two weights of CodesOf. The first product is exact.
  __device__ uint32_t Values(uint32_t codes, uint32_t factor) const {
    return MultiplyAddPairs(MultiplyPairs(codes, factor), scale, minimum);
  }
};

// Unpacks a word of integers: of the rows r the scales are `scales[0]`, of the rows r + 8
// `scales[1]`.
template <typename Scale>
__device__ void UnpackInt4(uint32_t word, const Scale (&scales)[2], uint32_t (&values)[4]) {
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    values[pair] = scales[pair % 2].Values(CodesOf(word, pair), CodeFactor(pair));
  }
}

// Returns the E8M0 scale 2^(code - 127) as two equal BF16. 255 stands for NaN.
__device__ inline uint32_t Mxfp4Scale(uint32_t code) {
  const uint32_t bits = code == 0 ? 0x0040 : code == 255 ? 0x7fff : code << 7;
  return Twice(bits);
}

// Returns the values of a word of kMxfp4 times 2^-126: the exponent's and mantissa's bits of E2M1
// in the place of BF16's lowest ones, also for E2M1's subnormal 0.5.
__device__ inline void Mxfp4Steps(uint32_t word, uint32_t (&values)[4]) {
  constexpr uint32_t kMask = 0x81c081c0;
  values[0] = word & kMask;
  values[1] = word << 3 & kMask;
  values[2] = word << 6 & kMask;
  values[3] = (word << 1 & 0x80008000) | (word >> 5 & 0x01000100) | (word >> 4 & 0x00c000c0);
}

// Unpacks a word of kMxfp4.
__device__ inline void UnpackMxfp4(uint32_t word, const uint32_t (&scales)[2],
                                   uint32_t (&values)[4]) {
  constexpr uint32_t kBias = 0x7e807e80;  // 2^126, twice
  Mxfp4Steps(word, values);
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    values[pair] = MultiplyPairs(MultiplyPairs(values[pair], kBias), scales[pair % 2]);
  }
}

// Returns a scale below 2 of the four in a word for UnpackSmallMxfp4, which saves half the
// products: the scale times 2^126 is a BF16, and the result has it twice.
__device__ inline uint32_t Mxfp4SmallScale(uint32_t four, int which) {
  return __byte_perm(four, 0, 0x4040 + 0x0101 * which) * 128 + 126 * 0x00800080;
}
__device__ inline void UnpackSmallMxfp4(uint32_t word, const uint32_t (&scales)[2],
                                        uint32_t (&values)[4]) {
  Mxfp4Steps(word, values);
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) values[pair] = MultiplyPairs(values[pair], scales[pair % 2]);
}

// Load 32, 64 or 128 bits from memory, or from an address in shared memory.
template <typename Word>
__device__ Word LoadAt(const uint8_t* from, int offset) {
  return *reinterpret_cast<const Word*>(from + offset);
}
template <typename Word>
__device__ Word LoadAt(uint32_t from, int offset) {
  Word word;
  if constexpr (sizeof(Word) == 4) {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from + offset) : "memory");
  } else if constexpr (sizeof(Word) == 8) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(word.x), "=r"(word.y)
                 : "r"(from + offset)
                 : "memory");
  } else {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                 : "r"(from + offset)
                 : "memory");
  }
  return word;
}

// Unpacks codes of one thread, with the scales of the two rows of a block at hand: kType, kGroup.
template <FourBitType kType, int kGroup>
class FourBitScales {
 public:
  static constexpr int kGroups = kFourBitColumns / kGroup;

  // The bytes of a row's scales.
  static constexpr int kRowBytes = kGroups * (kType == FourBitType::kMxfp4 ? 1 : 4);

  // Reads the scales of a row and of the row 8 further. `scales`: those of the first one, a pointer
  // or an address in shared memory.
  template <typename Memory>
  __device__ void Read(Memory scales) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = 8 * half * kRowBytes;
      if constexpr (kRowBytes == 16) {
        const uint4 four = LoadAt<uint4>(scales, at);
        stored_[half][0] = four.x, stored_[half][1] = four.y;
        stored_[half][2] = four.z, stored_[half][3] = four.w;
      } else if constexpr (kRowBytes == 8) {
        const uint2 two = LoadAt<uint2>(scales, at);
        stored_[half][0] = two.x, stored_[half][1] = two.y;
      } else {
        stored_[half][0] = LoadAt<uint32_t>(scales, at);
      }
    }
  }

  // Calls use(unpack): unpack(word, step, values) unpacks the word of columns 16 * step ... of the
  // block. Steps are known when this is compiled, and ascend, so that scales are computed once a
  // group. `scale` is that of kInt4.
  template <typename Use>
  __device__ void WithUnpacker(FourBitScale scale, const Use& use) const {
    if constexpr (kType == FourBitType::kMxfp4) {
      if (__all_sync(kFullWarp, AreSmall())) {
        use([this](uint32_t word, int step, uint32_t(&values)[4]) {
          const uint32_t scales[2] = {Mxfp4SmallScale(stored_[0][0], step / 2),
                                      Mxfp4SmallScale(stored_[1][0], step / 2)};
          UnpackSmallMxfp4(word, scales, values);
        });
      } else {
        use([this](uint32_t word, int step, uint32_t(&values)[4]) {
          const uint32_t scales[2] = {Mxfp4Scale(stored_[0][0] >> (step / 2 * 8) & 0xff),
                                      Mxfp4Scale(stored_[1][0] >> (step / 2 * 8) & 0xff)};
          UnpackMxfp4(word, scales, values);
        });
      }
    } else if constexpr (kType == FourBitType::kInt4Affine) {
      WithIntegers<Int4Line>(use);
    } else if (scale == FourBitScale::kBf16) {
      WithIntegers<Int4Scale<FourBitScale::kBf16>>(use);
    } else {
      WithIntegers<Int4Scale<FourBitScale::kF16>>(use);
    }
  }

  // Unpacks words of the columns 16 * kFirst ... of the block.
  template <int kFirst, int kWords>
  __device__ void Unpack(const uint32_t (&words)[kWords], FourBitScale scale,
                         uint32_t (&values)[kWords][4]) const {
    WithUnpacker(scale, [&](auto&& unpack) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) unpack(words[i], kFirst + i, values[i]);
    });
  }

 private:
  template <typename Scale, typename Use>
  __device__ void WithIntegers(const Use& use) const {
    Scale scales[2];
    int group = -1;
    use([&](uint32_t word, int step, uint32_t(&values)[4]) {
      if (step * 16 / kGroup != group) {
        group = step * 16 / kGroup;
#pragma unroll
        for (int half = 0; half < 2; ++half) scales[half] = Scale::Read(stored_[half][group]);
      }
      UnpackInt4(word, scales, values);
    });
  }

  // kMxfp4: returns whether all scales are below 2.
  __device__ bool AreSmall() const { return ((stored_[0][0] | stored_[1][0]) & 0x80808080) == 0; }

  uint32_t stored_[2][kType == FourBitType::kMxfp4 ? 1 : kGroups];
};

#endif  // __CUDACC__

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_FOUR_BIT_CUH_
