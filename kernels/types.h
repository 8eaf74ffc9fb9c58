// Types that kernels exchange: plain values that point into device memory. A kernel owns nothing,
// allocates nothing and may be captured in a graph.
#ifndef MILLRACE_KERNELS_TYPES_H_
#define MILLRACE_KERNELS_TYPES_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace millrace::kernels {

using Bf16 = __nv_bfloat16;

// kFp8 is E4M3 without infinities (arXiv:2209.05433): the largest number is 448.
enum class Type : uint8_t { kF32, kBf16, kFp8 };

// How FP8 activations are scaled: element = code * scale.
enum class Scaling : uint8_t {
  kNone,        // BF16
  kTensor,      // scales[0], read: known before (static)
  kToken,       // scales[token], written: the row's largest magnitude / 448
  kTokenGroup,  // scales[(column / 128) * PaddedTokens(tokens) + token], written
};

// Returns whether a value's rounding is independent of the rest of its row.
constexpr bool IsKnown(Scaling scaling) {
  return scaling == Scaling::kNone || scaling == Scaling::kTensor;
}

// The multiple that a linear's input is padded to.
inline constexpr int kColumnPadding = 128;

// Block-scaled linears run on a multiple of four tokens, since cuBLASLt reads their scales token by
// token in 16-byte pieces. A kTokenGroup activation and a linear's output for it have memory for
// that many rows, and the last ones may hold anything.
constexpr int64_t PaddedTokens(int64_t tokens) { return (tokens + 3) / 4 * 4; }

// A linear's input, [tokens, width] in rows of `stride` elements, a multiple of kColumnPadding. Its
// producer fills columns [width, stride) with zeros. 16-byte aligned.
struct Activation {
  void* data;
  Type type;  // kBf16 or kFp8
  Scaling scaling;
  int64_t stride;
  float* scales;  // null for kNone
};

constexpr Activation Bf16Rows(Bf16* data, int64_t stride) {
  return {data, Type::kBf16, Scaling::kNone, stride, nullptr};
}

enum class WeightScaling : uint8_t {
  kNone,     // BF16
  kTensor,   // scales[0]
  kChannel,  // scales[row]
  kBlock,    // scales[(row / 128) * BlockScaleStride(stride) + column / 128]
};

// Scales of 128x128 blocks lie as cuBLASLt wants them: each row of blocks starts at 16 bytes.
constexpr int64_t BlockScaleStride(int64_t stride) { return (stride / 128 + 3) / 4 * 4; }

// A linear's weight, [rows, columns]: one row an output, in rows of `stride` elements, a multiple
// of kColumnPadding; columns [columns, stride) are zeros. 16-byte aligned; rows % 16 == 0. The
// value is element * scale.
struct Weight {
  const void* data;
  Type type;  // kBf16 or kFp8
  WeightScaling scaling;
  int64_t rows;
  int64_t stride;
  const float* scales;  // null for kNone
};

// A linear's output, [tokens, width] in rows of `stride` elements: the value is data *
// token_scales[token] * channel_scales[column], where a null scale means 1. The scales left to the
// consumer are those that cuBLASLt applies slowly. 16-byte aligned, stride % 8 == 0.
struct Product {
  const Bf16* data;
  int64_t stride;
  const float* token_scales;
  const float* channel_scales;
};

// Layout of a gated linear's outputs: `size` of the gate and `size` of the other factor (up).
enum class GateLayout : uint8_t {
  kHalves,       // gate in [0, size), up in [size, 2 * size)
  kInterleaved,  // alternating groups of 8 of gate and up: a tile of 16 outputs has both
};

// The paged cache of one layer (arXiv:2309.06180). Element d of token s of kv head h, keys (w = 0)
// or values (w = 1) of block b lies at
//   data[b * block_stride + ((w * kv_heads + h) * block_size + s) * head_size + d].
struct KvPages {
  void* data;
  // kFp8, or kBf16: that has keys in BF16, but values in FP16 (saturated), since the probabilities
  // that they are multiplied with need its precision.
  Type type;
  int64_t block_stride;  // elements; at least 2 * kv_heads * block_size * head_size
  int block_size;        // tokens: 16, 32, 64 or 128
  int kv_heads;
  int head_size;  // 64, 96, 128 or 256
  float k_scale;  // of FP8 codes; 1 for kBf16
  float v_scale;
};

// Block tables of the slots: position p of slot s lies in block blocks[s * stride + p /
// block_size].
struct BlockTables {
  const int32_t* blocks;
  int64_t stride;
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_TYPES_H_
