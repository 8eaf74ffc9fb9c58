// Reads what a checkpoint of torch.distributed.checkpoint says of its tensors, and where their
// parts lie. Format: the classes of torch/distributed/checkpoint/{metadata,filesystem}.py, pickled.
#ifndef MILLRACE_FORMATS_DISTRIBUTED_CHECKPOINT_METADATA_H_
#define MILLRACE_FORMATS_DISTRIBUTED_CHECKPOINT_METADATA_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "formats/distributed/torch_type.h"

namespace millrace {

// A box of a tensor's elements, and where it is stored.
struct CheckpointChunk {
  std::vector<int64_t> offsets;  // of its first element in the tensor, a number a dimension
  std::vector<int64_t> sizes;    // each >= 1
  int file = 0;                  // of CheckpointMetadata::files
  uint64_t offset = 0;           // of its first byte there
  uint64_t bytes = 0;            // that it takes there
};

struct CheckpointTensor {
  std::string name;  // printable ASCII
  const TorchType* type = nullptr;
  std::vector<int64_t> shape;           // outermost first
  std::vector<CheckpointChunk> chunks;  // as many elements as the tensor has; empty ones left out
};

struct CheckpointMetadata {
  std::vector<CheckpointTensor> tensors;  // of the model, in the checkpoint's order
  std::vector<std::string> files;         // names in the checkpoint's folder, no paths
  // Entries that are no tensors of the model: the state of an optimizer, a learning rate's, a data
  // loader's, and objects that are no tensors at all.
  int64_t left_out = 0;
};

// The largest number of dimensions.
inline constexpr size_t kMaxCheckpointRank = 8;

// Returns whether an entry belongs to training and not to the model: where its name, or what
// follows "app." in it, begins with a word like "optimizer" or "lr_scheduler".
bool IsTrainingState(std::string_view name);

// Reads the content of a `.metadata` file. INVALID_ARGUMENT for what is damaged or lies, a tensor
// of the model with parts that are missing or lie outside of it; UNIMPLEMENTED, by its name, for a
// class, a type or a transformation that is not read. Messages have no file's name; those about a
// tensor have its name.
absl::StatusOr<CheckpointMetadata> ReadCheckpointMetadata(absl::Span<const uint8_t> bytes);

// Returns the product of the sizes, each of which is >= 0; -1 if it has more than 62 bits.
int64_t ElementsOf(absl::Span<const int64_t> sizes);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_DISTRIBUTED_CHECKPOINT_METADATA_H_
