#include "formats/tensor.h"

#include "absl/strings/str_join.h"
#include "base/strings.h"

namespace millrace {

const TensorTypeTraits& Traits(TensorType type) {
  static constexpr TensorTypeTraits kTraits[] = {{"F32", 1, 4},    {"F16", 1, 2},
                                                 {"Q8_0", 32, 34}, {"Q4_1", 32, 20},
                                                 {"BF16", 1, 2},   {"F8_E4M3", 1, 1}};
  return kTraits[static_cast<int>(type)];
}

std::string ShapeString(absl::Span<const int64_t> shape) {
  return StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace millrace
