// For tests: the bytes of tensors.
#ifndef MILLRACE_FORMATS_TWINS_TENSOR_TEST_UTIL_H_
#define MILLRACE_FORMATS_TWINS_TENSOR_TEST_UTIL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "formats/tensors/tensor.h"

namespace millrace {

// Values to the bytes of a tensor (nearest rounding, the scales from the block's extremes; FP8
// saturates) and back.
std::string EncodeTensor(TensorType type, absl::Span<const float> values);
std::vector<float> DecodeTensor(TensorType type, absl::Span<const uint8_t> bytes);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TWINS_TENSOR_TEST_UTIL_H_
