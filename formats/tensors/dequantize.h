// Decodes the stored elements of a tensor.
#ifndef MILLRACE_FORMATS_TENSORS_DEQUANTIZE_H_
#define MILLRACE_FORMATS_TENSORS_DEQUANTIZE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "formats/tensors/tensor.h"

namespace millrace {

inline constexpr int kQuantBlock = 32;  // elements that ReadBlock reads

// 32 consecutive elements of a row: element i is
//   CodeValue(type, codes[i]) * scales[i / 16] - minima[i / 16],
// which gives what ggml's own dequantization gives, bit for bit.
struct QuantizedElements {
  uint8_t codes[kQuantBlock];
  float scales[2];
  float minima[2];
};

// Reads elements [32 * index, 32 * index + 32) of `row`, of a quantized type.
QuantizedElements ReadBlock(TensorType type, const uint8_t* row, int64_t index);

// Returns a code's value: its distance to the middle of the codes, or its entry in a table.
int CodeValue(TensorType type, int code);

// Decodes `bytes`, whole blocks of `type`, into `values`, as many elements as they hold. FP8 gives
// the codes' own values, without a checkpoint's scales. Operations are in the order of the formulas
// in tensor.h, each step rounded to float32.
void Dequantize(TensorType type, absl::Span<const uint8_t> bytes, absl::Span<float> values);

// Reads the scales of the two halves of Q3_K's 8 blocks of 32 from the 12 bytes that hold them.
void ReadScalesQ3K(const uint8_t* packed, int8_t scales[16]);

// Returns the scale of MXFP4's block, 2^(exponent - 128): its values are doubled integers.
float ScaleMxfp4(uint8_t exponent);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TENSORS_DEQUANTIZE_H_
