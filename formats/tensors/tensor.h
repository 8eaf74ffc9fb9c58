// The description of one tensor of a model file, in any format.
#ifndef MILLRACE_FORMATS_TENSORS_TENSOR_H_
#define MILLRACE_FORMATS_TENSORS_TENSOR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace millrace {

// How elements are stored. The quantized kinds are ggml's (block_* in its ggml-common.h), numbers
// little-endian: blocks of 32 consecutive elements of a row,
//   kQ8_0: f16 d, int8 q[32]; element i is q[i] * d.
//   kQ4_0, kQ5_0: f16 d, (the fifth bits, one an element, in 4 bytes,) uint8 q[16]; element i has
//          the low nibble of q[i], element i + 16 the high one, and is (code - 8 or 16) * d.
//   kQ4_1, kQ5_1: f16 d, f16 m, (fifth bits,) q[16]; an element is code * d + m.
//   kIq4Nl, kMxfp4: f16 d (a byte, the exponent of a power of two), q[16]; table[code] * d.
// or of 256 in 8 blocks of 32 with scales of fewer bits (dequantize.cc has each layout),
//   kQ4K, kQ5K: code * (d * scale) - dmin * minimum, 6 bits each, a block of 32.
//   kQ6K, kQ3K: (code - 32 or 4) * (d * scale), a half of 16; scales of 8 and 6 bits.
//   kQ2K: code * (d * scale) - dmin * minimum, 4 bits each, a half of 16.
//   kIq4Xs, kIq3*, kIq2*, kIq1*: table[code] * (d * scale), of codes that are looked up in lattices
//          (codebook_blocks.h).
// kInt4x32, kInt4x128 are our own: f32 scale, f32 minimum, then for each 32 elements q[16] as in
//   kQ4_1; an element is code * scale + minimum. The 4-bit weights of a folder's linears
//   (packed_weight.h) are presented as such blocks and hold any f16 or bf16 scale exactly.
// kI32, kI64: integers, of which packed weights are made.
// kFp8E4m3: a sign, 4 bits of exponent, 3 of mantissa, no infinities, largest 448
// (arXiv:2209.05433). kU8 holds bytes that other tensors are read from, and is no model's own.
enum class TensorType {
  kF32,
  kF16,
  kQ8_0,
  kQ4_1,
  kBf16,
  kFp8E4m3,
  kQ4_0,
  kQ5_0,
  kQ5_1,
  kQ2K,
  kQ3K,
  kQ4K,
  kQ5K,
  kQ6K,
  kIq4Nl,
  kMxfp4,
  kU8,
  kInt4x32,
  kInt4x128,
  kI32,
  kI64,
  kIq4Xs,
  kIq3S,
  kIq3Xxs,
  kIq2S,
  kIq2Xs,
  kIq2Xxs,
  kIq1S,
  kIq1M,
};
inline constexpr int kNumTensorTypes = 29;

struct TensorTypeTraits {
  std::string_view name;
  int block_elements;  // elements a block; the innermost dimension is a multiple of it
  int block_bytes;
  bool quantized;
  int code_offset;  // what a code of 0 counts is minus this, where codes count from a middle
};
const TensorTypeTraits& Traits(TensorType type);

// Returns whether elements are numbers as they stand: F32, F16 or BF16.
bool IsFloat(TensorType type);

// Where the parts of a tensor lie that its file keeps in another order: element [row, column], of
// MXFP4 the 16 bytes of a block's codes, begins row * row_step + column * column_step bytes behind
// TensorInfo::offset. A vector's elements are rows of one column.
struct Scattered {
  // The scales of MXFP4's blocks, a byte each, and codes with the low nibbles at the even elements:
  // gpt-oss's form (arXiv:2508.10925), against GGUF's, in which a block begins with its scale and
  // has its first half's elements in the low nibbles.
  struct BlockScales {
    uint64_t offset = 0;  // of the first row's, from the start of `file`
    uint64_t row_step = 0;
    int file = 0;
  };

  uint64_t row_step = 0;
  uint64_t column_step = 0;
  std::optional<BlockScales> scales;
};

struct TensorInfo {
  // As the file spells it; of one cut out of a tensor of many experts, that tensor's and the
  // expert's number.
  std::string_view name;
  TensorType type = TensorType::kF32;
  // Outermost first: a linear layer's weight is [out, in]. Each >= 1; empty for a single number.
  std::vector<int64_t> shape;
  uint64_t offset = 0;  // of the first byte, from the start of its file
  uint64_t bytes = 0;   // in the order of its type
  int file = 0;         // which of its source's files it lies in
  std::optional<Scattered> scattered = std::nullopt;  // set: TensorSource::Read alone gives it
};

// Returns a shape for messages: "[49152, 576]".
std::string ShapeString(absl::Span<const int64_t> shape);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TENSORS_TENSOR_H_
