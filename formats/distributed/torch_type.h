// The types of PyTorch's tensors that are read.
#ifndef MILLRACE_FORMATS_DISTRIBUTED_TORCH_TYPE_H_
#define MILLRACE_FORMATS_DISTRIBUTED_TORCH_TYPE_H_

#include <string_view>

#include "absl/types/span.h"

namespace millrace {

struct TorchType {
  std::string_view torch;        // "torch.bfloat16"
  std::string_view storage;      // "torch.BFloat16Storage"; empty: it has none of its own
  std::string_view safetensors;  // "BF16"
  int bytes;                     // of an element
};

absl::Span<const TorchType> TorchTypes();

// Returns the type with this name, as PyTorch or as safetensors spells it; null for others.
const TorchType* FindTorchType(std::string_view torch);
const TorchType* FindSafetensorsType(std::string_view safetensors);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_DISTRIBUTED_TORCH_TYPE_H_
