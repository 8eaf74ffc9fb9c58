// What a model file says about one tensor, whatever the file's format.
#ifndef MILLRACE_FORMATS_TENSOR_H_
#define MILLRACE_FORMATS_TENSOR_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace millrace {

// How elements are stored. The quantized kinds hold blocks of 32 consecutive elements of a row,
// numbers little-endian (layouts as in ggml):
//   kQ8_0, 34 bytes: f16 d, int8 q[32]; element i is q[i] * d.
//   kQ4_1, 20 bytes: f16 d, f16 m, uint8 q[16]; element i < 16 is (q[i] & 15) * d + m, element
//          i + 16 is (q[i] >> 4) * d + m.
// kFp8E4m3: a sign, 4 bits of exponent, 3 of mantissa, no infinities, largest 448
// (arXiv:2209.05433).
enum class TensorType { kF32, kF16, kQ8_0, kQ4_1, kBf16, kFp8E4m3 };

struct TensorTypeTraits {
  std::string_view name;
  int block_elements;  // elements a block; the innermost dimension is a multiple of it
  int block_bytes;
};
const TensorTypeTraits& Traits(TensorType type);

struct TensorInfo {
  std::string_view name;  // as the file spells it
  TensorType type = TensorType::kF32;
  // Outermost first: a linear layer's weight is [out, in]. Each >= 1; empty for a single number.
  std::vector<int64_t> shape;
  uint64_t offset = 0;  // of the first byte, from the start of its file
  uint64_t bytes = 0;
  int file = 0;  // which of its source's files it lies in
};

// "[49152, 576]", for messages.
std::string ShapeString(absl::Span<const int64_t> shape);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TENSOR_H_
