#include "formats/tensors/tensor.h"

#include "absl/strings/str_join.h"
#include "base/strings.h"

namespace millrace {

const TensorTypeTraits& Traits(TensorType type) {
  static constexpr TensorTypeTraits kTraits[kNumTensorTypes] = {
      {"F32", 1, 4, false, 0},        {"F16", 1, 2, false, 0},      {"Q8_0", 32, 34, true, 128},
      {"Q4_1", 32, 20, true, 0},      {"BF16", 1, 2, false, 0},     {"F8_E4M3", 1, 1, false, 0},
      {"Q4_0", 32, 18, true, 8},      {"Q5_0", 32, 22, true, 16},   {"Q5_1", 32, 24, true, 0},
      {"Q2_K", 256, 84, true, 0},     {"Q3_K", 256, 110, true, 4},  {"Q4_K", 256, 144, true, 0},
      {"Q5_K", 256, 176, true, 0},    {"Q6_K", 256, 210, true, 32}, {"IQ4_NL", 32, 18, true, 0},
      {"MXFP4", 32, 17, true, 0},     {"U8", 1, 1, false, 0},       {"INT4_32", 32, 24, true, 0},
      {"INT4_128", 128, 72, true, 0}, {"I32", 1, 4, false, 0},      {"I64", 1, 8, false, 0},
      {"IQ4_XS", 256, 136, true, 0},  {"IQ3_S", 256, 110, true, 0}, {"IQ3_XXS", 256, 98, true, 0},
      {"IQ2_S", 256, 82, true, 0},    {"IQ2_XS", 256, 74, true, 0}, {"IQ2_XXS", 256, 66, true, 0},
      {"IQ1_S", 256, 50, true, 0},    {"IQ1_M", 256, 56, true, 0}};
  return kTraits[static_cast<int>(type)];
}

bool IsFloat(TensorType type) {
  return type == TensorType::kF32 || type == TensorType::kF16 || type == TensorType::kBf16;
}

std::string ShapeString(absl::Span<const int64_t> shape) {
  return StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace millrace
