// For tests: blocks of the quantized kinds.
#ifndef MILLRACE_FORMATS_TWINS_QUANTIZED_TEST_UTIL_H_
#define MILLRACE_FORMATS_TWINS_QUANTIZED_TEST_UTIL_H_

#include <string>

#include "absl/types/span.h"
#include "formats/tensors/tensor.h"

namespace millrace {

// One block of the file: as many values as it has elements. Scales come from extremes, then each
// element gets the nearest code.
std::string EncodeQuantized(TensorType type, absl::Span<const float> values);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TWINS_QUANTIZED_TEST_UTIL_H_
