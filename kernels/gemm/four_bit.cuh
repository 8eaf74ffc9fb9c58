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
#include <type_traits>

#include "kernels/device_util.cuh"
#include "kernels/gemm/four_bit.h"

namespace millrace::kernels {

// Returns the bits of two codes in a word: pair `pair` (0 to 3) of the codes of columns c and c
// + 1. Integers: four bits at 4 pair, and at 16 + 4 pair. kMxfp4: the sign and the three other bits
// (magnitude) lie so that a shift or rotation brings them to their places in BF16 together; the
// fourth pair takes what bits are left, and two shifts. In a rotation the magnitude comes from the
// other half of the word.
__host__ __device__ inline uint32_t PackFourBit(FourBitType type, int pair, uint32_t first,
                                                uint32_t second) {
  const uint32_t both[2] = {first & 15, second & 15};
  uint32_t word = 0;
  for (int i = 0; i < 2; ++i) {
    const uint32_t code = both[i], sign = code >> 3, magnitude = code & 7;
    uint32_t bits;
    if (type != FourBitType::kMxfp4) {
      bits = code << (4 * pair);
    } else if (pair < 2) {
      bits = (sign << 15 | magnitude << 6) >> (4 * pair);
    } else if (pair == 2) {
      bits = sign << 5;
      word |= magnitude << 12 << (16 * (1 - i));
    } else {
      bits = (magnitude >> 2) << 10 | sign << 9 | (magnitude & 3);
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

// Return the upper and the lower 16 bits twice.
__device__ inline uint32_t UpperTwice(uint32_t bits) { return __byte_perm(bits, 0, 0x3232); }
__device__ inline uint32_t LowerTwice(uint32_t bits) { return __byte_perm(bits, 0, 0x1010); }

// Integers are unpacked without conversions. In the lowest eight bits of a BF16, the subnormal ones
// and those of the smallest exponent, a code counts in steps of one size: at bit 0 it is code *
// 2^-133, at bit 4 code * 2^-129. A product by a power of two makes code / 128 of both, exactly.
// All pairs of a row r lie at bit 0, and those of a row r + 8 at bit 4.
inline constexpr float kCodeSteps = 128;
__device__ inline constexpr float CodeFactor(int half) { return half == 0 ? 0x1p126f : 0x1p122f; }
__device__ inline uint32_t CodeFactorTwice(int half) { return half == 0 ? 0x7e807e80 : 0x7c807c80; }

// Returns the codes of a pair of a word of integers as CodeFactor takes them.
__device__ inline uint32_t CodesOf(uint32_t word, int pair) {
  return (pair < 2 ? word : word >> 8) & (pair % 2 == 0 ? 0x000f000f : 0x00f000f0);
}

// Returns the upper 16 bits of a float, which are a BF16, twice.
__device__ inline uint32_t UpperTwice(float value) { return UpperTwice(__float_as_uint(value)); }

// FourBitGroup holds the numbers that make weights of a group's codes in one row, each as two equal
// BF16. Store returns the group's 32 bits in a tile; `half` is 1 for rows r + 8. Read takes them.
template <FourBitSteps kSteps>
struct FourBitGroup;

// The scale's bits are in the file's type.
template <FourBitSteps kSteps>
requires(kSteps == FourBitSteps::kBf16 ||
         kSteps == FourBitSteps::kF16) struct FourBitGroup<kSteps> {
  uint32_t high, low;  // times 128; an FP16's 11 bits are the sum of two BF16, its first 8 and 3
  uint32_t zero;       // negated, by 128

  __device__ static uint32_t Store(uint32_t scale, int zero) {
    const float offset = static_cast<float>(zero) / -kCodeSteps;  // exactly a BF16
    return scale | (__float_as_uint(offset) & 0xffff0000);
  }
  __device__ static FourBitGroup Read(uint32_t stored, int /*half*/) {
    const uint32_t zero = UpperTwice(stored);
    if constexpr (kSteps == FourBitSteps::kBf16) {
      return {UpperTwice(__uint_as_float(stored << 16) * kCodeSteps), 0, zero};
    }
    const float scale = __half2float(__ushort_as_half(static_cast<uint16_t>(stored))) * kCodeSteps;
    const float high = __uint_as_float(__float_as_uint(scale) & 0xffff0000);
    return {UpperTwice(high), UpperTwice(scale - high), zero};
  }

  // Returns two weights of CodesOf. All but the last step is exact: the difference has 5 bits, its
  // product with `low` at most 8.
  __device__ uint32_t Values(uint32_t codes, int half) const {
    const uint32_t steps = MultiplyAddPairs(codes, CodeFactorTwice(half), zero);
    if constexpr (kSteps == FourBitSteps::kBf16) return MultiplyPairs(steps, high);
    return MultiplyAddPairs(steps, high, MultiplyPairs(steps, low));
  }
};

// An FP16 scale with a zero point of 8. (code - 8) * A is rounded to a BF16 and so is its product
// with C; of the 1,024 significands of FP16 each has an A and a C that give bf16((code - 8) *
// scale) for all codes, though A * C is not the scale.
template <>
struct FourBitGroup<FourBitSteps::kFactors> {
  uint32_t first, eights, second;  // A times CodeFactor, -8 A / 128, 128 C

  __device__ static uint32_t Store(float scale, int half) {
    float first = 1, second = scale;
    for (int i = 0; i < 256; ++i) {
      const float a = 1 + static_cast<float>(i / 2) / 128;
      const uint32_t down = __float_as_uint(scale / a) & 0xffff0000;
      const float c = __uint_as_float(down + (i % 2 << 16));
      if (!Fits(scale, a, c)) continue;
      first = a, second = c;
      break;
    }
    return __float_as_uint(first * CodeFactor(half)) >> 16 |
           (__float_as_uint(second * kCodeSteps) & 0xffff0000);
  }
  __device__ static FourBitGroup Read(uint32_t stored, int half) {
    // -2^-130 and -2^-126, twice.
    const uint32_t first = LowerTwice(stored), eight = half == 0 ? 0x80088008 : 0x80808080;
    return {first, MultiplyPairs(first, eight), UpperTwice(stored)};
  }
  __device__ uint32_t Values(uint32_t codes, int /*half*/) const {
    return MultiplyPairs(MultiplyAddPairs(codes, first, eights), second);
  }

 private:
  __device__ static bool Fits(float scale, float a, float c) {
    const auto rounded = [](float x) { return __bfloat162float(__float2bfloat16_rn(x)); };
    for (int step = 1; step < 8; step += 2) {  // the others are these times powers of two
      const auto t = static_cast<float>(step);
      if (rounded(rounded(t * a) * c) != rounded(t * scale)) return false;
    }
    return true;
  }
};

// A scale and a minimum, weights by kLineUnit.
template <>
struct FourBitGroup<FourBitSteps::kLine> {
  uint32_t scale, minimum;  // the scale times 128 CodeFactor

  __device__ static uint32_t Store(float scale, float minimum, int half) {
    return __float_as_uint(scale * (kCodeSteps / kLineUnit) * CodeFactor(half)) >> 16 |
           (__float_as_uint(minimum / kLineUnit) & 0xffff0000);
  }
  __device__ static FourBitGroup Read(uint32_t stored, int /*half*/) {
    return {LowerTwice(stored), UpperTwice(stored)};
  }
  __device__ uint32_t Values(uint32_t codes, int /*half*/) const {
    return MultiplyAddPairs(codes, scale, minimum);
  }
};

// Unpacks a word of integers: of the rows r the group is `groups[0]`, of the rows r + 8
// `groups[1]`.
template <typename Group>
__device__ void UnpackInt4(uint32_t word, const Group (&groups)[2], uint32_t (&values)[4]) {
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    values[pair] = groups[pair % 2].Values(CodesOf(word, pair), pair % 2);
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
  values[1] = word << 4 & kMask;
  values[2] = __funnelshift_l(word, word, 10) & kMask;
  values[3] = (word << 6 & 0x80c080c0) | (word >> 2 & 0x01000100);
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

// Calls use(steps) with the steps as a std::integral_constant, so that loops are compiled for them.
// It is inlined: ptxas serializes wgmma where calls stand between its steps.
template <FourBitType kType, typename Use>
__device__ __forceinline__ void WithSteps(FourBitSteps steps, const Use& use) {
  if constexpr (kType != FourBitType::kInt4) {
    use(std::integral_constant<FourBitSteps, FourBitSteps::kLine>());
  } else if (steps == FourBitSteps::kLine) {
    use(std::integral_constant<FourBitSteps, FourBitSteps::kLine>());
  } else if (steps == FourBitSteps::kFactors) {
    use(std::integral_constant<FourBitSteps, FourBitSteps::kFactors>());
  } else if (steps == FourBitSteps::kBf16) {
    use(std::integral_constant<FourBitSteps, FourBitSteps::kBf16>());
  } else {
    use(std::integral_constant<FourBitSteps, FourBitSteps::kF16>());
  }
}

// Unpacks codes of one thread, with the scales of its two rows of the current block: kType, kGroup.
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
  // group. kSteps are those of the format, for integers.
  template <FourBitSteps kSteps, typename Use>
  __device__ void WithUnpacker(const Use& use) const {
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
    } else {
      WithIntegers<kSteps>(use);
    }
  }

  // Unpacks words of the columns 16 * kFirst ... of the block.
  template <FourBitSteps kSteps, int kFirst, int kWords>
  __device__ void Unpack(const uint32_t (&words)[kWords], uint32_t (&values)[kWords][4]) const {
    WithUnpacker<kSteps>([&](auto&& unpack) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) unpack(words[i], kFirst + i, values[i]);
    });
  }

 private:
  template <FourBitSteps kSteps, typename Use>
  __device__ void WithIntegers(const Use& use) const {
    FourBitGroup<kSteps> groups[2];
    int group = -1;
    use([&](uint32_t word, int step, uint32_t(&values)[4]) {
      if (step * 16 / kGroup != group) {
        group = step * 16 / kGroup;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          groups[half] = FourBitGroup<kSteps>::Read(stored_[half][group], half);
        }
      }
      UnpackInt4(word, groups, values);
    });
  }

  // kMxfp4: returns whether all scales are below 2.
  __device__ bool AreSmall() const { return ((stored_[0][0] | stored_[1][0]) & 0x80808080) == 0; }

  uint32_t stored_[2][kType == FourBitType::kMxfp4 ? 1 : kGroups];
};

#endif  // __CUDACC__

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_FOUR_BIT_CUH_
