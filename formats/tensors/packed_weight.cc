#include "formats/tensors/packed_weight.h"

namespace millrace {

std::vector<const TensorInfo*> PackedWeight::Stored() const {
  std::vector<const TensorInfo*> stored = {codes, scales};
  if (zeros != nullptr) stored.push_back(zeros);
  if (groups != nullptr) stored.push_back(groups);
  return stored;
}

TensorType PackedType(const QuantScheme& scheme, int64_t columns) {
  const int block = Traits(TensorType::kInt4x128).block_elements;
  return columns % block == 0 && scheme.group.columns % block == 0 ? TensorType::kInt4x128
                                                                   : TensorType::kInt4x32;
}

uint64_t RowBytes(TensorType type, int64_t columns) {
  const TensorTypeTraits& traits = Traits(type);
  return (columns + traits.block_elements - 1) / traits.block_elements * traits.block_bytes;
}

}  // namespace millrace
