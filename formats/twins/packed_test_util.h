// For tests: weights of four bits as checkpoints hold them, written element by element.
#ifndef MILLRACE_FORMATS_TWINS_PACKED_TEST_UTIL_H_
#define MILLRACE_FORMATS_TWINS_PACKED_TEST_UTIL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "formats/json/json.h"
#include "formats/tensors/quant_scheme.h"

namespace millrace {

// A tensor of a safetensors file.
struct StoredTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

struct PackedLinear {
  std::vector<StoredTensor> tensors;
  std::vector<float> values;  // [rows, columns], what they stand for
};

// Quantizes `values`, [rows, columns], to the nearest of 16 steps of each group. Scales are of
// `scale_type`. Where scheme.reordered is set, which inputs a group is made of depends on `seed`.
PackedLinear PackLinear(const QuantScheme& scheme, TensorType scale_type, const std::string& module,
                        int64_t rows, int64_t columns, absl::Span<const float> values, int seed);

// The `quantization_config` of a folder with such weights.
Json PackedConfig(const QuantScheme& scheme);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TWINS_PACKED_TEST_UTIL_H_
