// Device code that reads the quantized types of model files. formats/tensors/tensor.h has the
// layouts.
#ifndef MILLRACE_KERNELS_WEIGHTS_STORED_BLOCKS_CUH_
#define MILLRACE_KERNELS_WEIGHTS_STORED_BLOCKS_CUH_

#include <cuda_fp16.h>

#include <cstdint>

namespace millrace::kernels {

__device__ inline float HalfAt(const uint8_t* from) {
  return __half2float(*reinterpret_cast<const __half*>(from));
}

// Eight elements of a block, which share a scale and a minimum. With the block's type T, element i
// is T::Value(codes[i]) * scale - minimum.
struct EightCodes {
  uint32_t codes[8];
  float scale;
  float minimum;

  __device__ explicit EightCodes(float scale, float minimum = 0)
      : codes{}, scale(scale), minimum(minimum) {}

  // Puts the `bits` bits at `shift` of each of eight bytes above the code's `lower` lower bits.
  // `from` is aligned as a Word.
  template <typename Word>
  __device__ void AddFields(const uint8_t* from, int shift, int bits, int lower) {
    constexpr int kWordBytes = sizeof(Word);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t word = reinterpret_cast<const Word*>(from)[i / kWordBytes];
      const uint32_t field = word >> (i % kWordBytes * 8 + shift) & ((1 << bits) - 1);
      codes[i] |= field << lower;
    }
  }

  // Makes bit i of `bits` the fifth bit of code i.
  __device__ void AddFifthBits(uint32_t bits) {
#pragma unroll
    for (int i = 0; i < 8; ++i) codes[i] |= (bits >> i & 1) << 4;
  }

  // Rounds the product and the difference, as the host's reader does. For codes of all types and
  // scales of 16 bits the product is exact.
  template <typename T>
  __device__ void Elements(float (&to)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      to[i] = __fsub_rn(__fmul_rn(T::Value(codes[i]), scale), minimum);
    }
  }
};

// Types have kElements and kBytes of a block. Load reads elements [first, first + 8) of a block,
// where `first` is a multiple of 8. Blocks follow one another without gaps, from a 16-byte aligned
// address on.

// ---- Blocks of 32 elements; the low nibbles are those of the first half ----

template <int kMiddle>
struct CodesFrom {
  static __device__ float Value(uint32_t code) {
    return static_cast<float>(static_cast<int>(code) - kMiddle);
  }
};

struct Q8_0 : CodesFrom<128> {
  static constexpr int kElements = 32, kBytes = 34;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    EightCodes eight(HalfAt(block));
    eight.AddFields<uint16_t>(block + 2 + first, 0, 8, 0);
#pragma unroll
    for (uint32_t& code : eight.codes) code ^= 0x80;  // of a signed number its distance from -128
    return eight;
  }
};

struct Q4_0 : CodesFrom<8> {
  static constexpr int kElements = 32, kBytes = 18;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    EightCodes eight(HalfAt(block));
    eight.AddFields<uint16_t>(block + 2 + first % 16, first / 16 * 4, 4, 0);
    return eight;
  }
};

struct Q4_1 : CodesFrom<0> {
  static constexpr int kElements = 32, kBytes = 20;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    EightCodes eight(HalfAt(block), -HalfAt(block + 2));
    eight.AddFields<uint32_t>(block + 4 + first % 16, first / 16 * 4, 4, 0);
    return eight;
  }
};

struct Q5_0 : CodesFrom<16> {
  static constexpr int kElements = 32, kBytes = 22;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    EightCodes eight(HalfAt(block));
    eight.AddFields<uint16_t>(block + 6 + first % 16, first / 16 * 4, 4, 0);
    eight.AddFifthBits(block[2 + first / 8]);
    return eight;
  }
};

struct Q5_1 : CodesFrom<0> {
  static constexpr int kElements = 32, kBytes = 24;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    EightCodes eight(HalfAt(block), -HalfAt(block + 2));
    eight.AddFields<uint32_t>(block + 8 + first % 16, first / 16 * 4, 4, 0);
    eight.AddFifthBits(block[4 + first / 8]);
    return eight;
  }
};

struct Iq4Nl {
  static constexpr int kElements = 32, kBytes = 18;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    return Q4_0::Load(block, first);
  }
  static __device__ float Value(uint32_t code) {
    constexpr int8_t kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                    1,    13,   25,  38,  53,  69,  89,  113};
    return static_cast<float>(kValues[code]);
  }
};

struct Mxfp4 {
  static constexpr int kElements = 32, kBytes = 17;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    // 2^(exponent - 128), since values are doubled.
    const uint32_t exponent = block[0];
    EightCodes eight(
        __uint_as_float(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23));
    eight.AddFields<uint8_t>(block + 1 + first % 16, first / 16 * 4, 4, 0);
    return eight;
  }
  static __device__ float Value(uint32_t code) {
    constexpr int8_t kValues[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return static_cast<float>(kValues[code]);
  }
};

// Our own: float32 scales, and kGroup elements in parts of 32.
template <int kGroup>
struct Int4 : CodesFrom<0> {
  static constexpr int kElements = kGroup, kBytes = 8 + kGroup / 2;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    const auto* const numbers = reinterpret_cast<const float*>(block);
    EightCodes eight(numbers[0], -numbers[1]);
    eight.AddFields<uint32_t>(block + 8 + first / 32 * 16 + first % 16, first / 16 % 2 * 4, 4, 0);
    return eight;
  }
};

// ---- Blocks of 256 elements: 8 blocks of 32, or 16 halves of those ----

// Returns the codes of element `first` of Q4_K or Q5_K, with the scale and the minimum of its block
// of 32: 6 bits each, of which the later four blocks have the upper two beside the earlier ones'.
__device__ inline EightCodes SuperScaled(const uint8_t* block, int first) {
  const int j = first / 32 % 4;
  const uint8_t* const packed = block + 4;
  uint32_t scale = packed[j], minimum = packed[j + 4];
  if (first < 128) {
    scale &= 63;
    minimum &= 63;
  } else {
    scale = (packed[j + 8] & 15) | scale >> 6 << 4;
    minimum = packed[j + 8] >> 4 | minimum >> 6 << 4;
  }
  return EightCodes(HalfAt(block) * static_cast<float>(scale),
                    HalfAt(block + 2) * static_cast<float>(minimum));
}

struct Q4K : CodesFrom<0> {
  static constexpr int kElements = 256, kBytes = 144;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    EightCodes eight = SuperScaled(block, first);
    eight.AddFields<uint32_t>(block + 16 + first / 64 * 32 + first % 32, first / 32 % 2 * 4, 4, 0);
    return eight;
  }
};

struct Q5K : CodesFrom<0> {
  static constexpr int kElements = 256, kBytes = 176;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    EightCodes eight = SuperScaled(block, first);
    eight.AddFields<uint32_t>(block + 48 + first / 64 * 32 + first % 32, first / 32 % 2 * 4, 4, 0);
    eight.AddFields<uint32_t>(block + 16 + first % 32, first / 32, 1, 4);
    return eight;
  }
};

struct Q6K : CodesFrom<32> {
  static constexpr int kElements = 256, kBytes = 210;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    const auto scale = static_cast<int8_t>(block[192 + first / 16]);
    EightCodes eight(HalfAt(block + 208) * static_cast<float>(scale));
    eight.AddFields<uint16_t>(block + first / 128 * 64 + first % 64, first / 64 % 2 * 4, 4, 0);
    eight.AddFields<uint16_t>(block + 128 + first / 128 * 32 + first % 32, first / 32 % 4 * 2, 2,
                              4);
    return eight;
  }
};

struct Q3K : CodesFrom<4> {
  static constexpr int kElements = 256, kBytes = 110;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    // 16 scales of 6 bits: the lower four of scales i and i + 8 share a byte, the upper two those
    // of i, i + 4, i + 8 and i + 12.
    const int i = first / 16;
    const uint8_t* const packed = block + 96;
    const int low = packed[i % 8] >> (i / 8 * 4) & 15, high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
    EightCodes eight(HalfAt(block + 108) * static_cast<float>((low | high << 4) - 32));
    eight.AddFields<uint16_t>(block + 32 + first / 128 * 32 + first % 32, first / 32 % 4 * 2, 2, 0);
    eight.AddFields<uint16_t>(block + first % 32, first / 32, 1, 2);
    return eight;
  }
};

struct Q2K : CodesFrom<0> {
  static constexpr int kElements = 256, kBytes = 84;
  static __device__ EightCodes Load(const uint8_t* block, int first) {
    const uint32_t both = block[first / 16];
    EightCodes eight(HalfAt(block + 80) * static_cast<float>(both & 15),
                     HalfAt(block + 82) * static_cast<float>(both >> 4));
    eight.AddFields<uint32_t>(block + 16 + first / 128 * 32 + first % 32, first / 32 % 4 * 2, 2, 0);
    return eight;
  }
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_WEIGHTS_STORED_BLOCKS_CUH_
