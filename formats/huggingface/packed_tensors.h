// Presents weights of four bits whose codes, scales and zero points lie in tensors of their own as
// one tensor each.
#ifndef MILLRACE_FORMATS_HUGGINGFACE_PACKED_TENSORS_H_
#define MILLRACE_FORMATS_HUGGINGFACE_PACKED_TENSORS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "formats/families/family.h"
#include "formats/model/model_config.h"
#include "formats/tensors/tensor_source.h"

namespace millrace {

// Returns the tensors of `stored`, a folder, where config.quantization is packed: each linear of
// the model without a weight of its own becomes one tensor, <name>.weight [out, in] of PackedType,
// which has no bytes but a PackedWeight (formats/tensors/packed_weight.h). A router, which is small
// and chooses experts, becomes BF16, its elements rounded, which TensorSource::Read gives and Data
// does not. The tensors that these are made of are no longer among tensors(). Nor is a GPTQ
// linear's bias that the model does not have, if it is all zeros: old writers left them.
//
// INVALID_ARGUMENT, naming the tensor, for one that is missing or of the wrong shape or type, for
// groups that do not divide the row, and for a router's numbers that make no sense
// (formats/tensors/packed_reader.h).
absl::StatusOr<std::unique_ptr<const TensorSource>> PresentPackedWeights(
    const ModelConfig& config, const Family& family, std::unique_ptr<const TensorSource> stored);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_HUGGINGFACE_PACKED_TENSORS_H_
