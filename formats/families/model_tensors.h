// Lists the tensors that a model has by its config, and checks a file's tensors against them.
#ifndef MILLRACE_FORMATS_FAMILIES_MODEL_TENSORS_H_
#define MILLRACE_FORMATS_FAMILIES_MODEL_TENSORS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "formats/model/model_config.h"
#include "formats/tensors/tensor_source.h"

namespace millrace {

struct Family;

// The factors of RopeConfig in GGUF files, which are no tensors that a placer places.
inline constexpr char kRopeFactors[] = "rope_freqs.weight";
inline constexpr char kShortRopeFactors[] = "rope_factors_short.weight";
inline constexpr char kLongRopeFactors[] = "rope_factors_long.weight";

enum class TensorRole {
  kTable,   // an embedding or the head
  kLinear,  // of a layer
  kExpert,  // a linear of an expert
  kRouter,  // a linear with few outputs, which is rarely quantized
  kVector,  // of a norm, or a bias
};

// A tensor that a model has, by GGUF's name. Which ones those are, the model's family says
// (families/decoder.h, families/encoder.h).
struct ModelTensor {
  std::string name;
  std::vector<int64_t> shape;
  TensorRole role;
};

// Checks that `tensors` are exactly those of the family of `config`, of the right shapes and types:
// after OK, a model and a placer can look them up by name without another check.
//
// Norms and biases are F32, F16 or BF16. Where config.quantization is set, a layer's linear may be
// of its type, F8_E4M3 (others were left as they were when the model was quantized), and has
// beside it
//   <name>.weight_scale  [1], [out] (or [out, 1]) or [ceil(out / 128), ceil(in / 128)], and
//   <name>.input_scale   [1], where activations are static;
// and a layer may have blk.N.attn.k_scale and blk.N.attn.v_scale, [1], for FP8 keys and values.
// A packed linear (formats/tensors/packed_weight.h) is checked where it is presented as one tensor.
// Scales are F32, F16 or BF16; a single number may have no dimension. Tensors that the family
// ignores are left alone.
absl::Status ValidateTensors(const ModelConfig& config, const Family& family,
                             const TensorSource& tensors);

// The types of a folder's tensors where config.quantization does not say them.
struct StoredTypes {
  TensorType all = TensorType::kBf16;
  std::optional<TensorType> experts;  // of their linears, where that is another
};

// Returns a model's tensors without data, for dummy weights: linears in the type of
// config.quantization with their scales in F32 where that is set, else in the type of `types`, as
// are the embedding, the head, routers and vectors.
std::unique_ptr<const TensorSource> MakeTensorShapes(const ModelConfig& config,
                                                     const Family& family, const StoredTypes& types,
                                                     std::string base_name);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_MODEL_TENSORS_H_
