// Writes the tensors of a checkpoint as the safetensors of a folder.
#ifndef MILLRACE_SERVER_CONVERT_TENSOR_WRITER_H_
#define MILLRACE_SERVER_CONVERT_TENSOR_WRITER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "formats/distributed/checkpoint_folder.h"
#include "formats/distributed/folder_tensors.h"
#include "server/convert/folder_writer.h"

namespace millrace {

struct TensorWriting {
  const TorchType* type = nullptr;          // that floats are cast to; null: they keep theirs
  uint64_t shard_bytes = 0;                 // of the data of a file, unless a tensor has more
  const std::atomic<bool>* stop = nullptr;  // once true, writing ends with Cancelled; may be null
  // Is called when a file is complete.
  std::function<void(const std::string& file, uint64_t bytes)> on_file = [](const auto&, auto) {};
};

struct WrittenTensors {
  size_t files = 0;
  uint64_t bytes = 0;
};

// Writes the tensors and their index, synced. Holds some 64 MiB beside what TensorStream does,
// whatever the tensors' sizes. Errors name the tensor.
absl::StatusOr<WrittenTensors> WriteTensors(CheckpointFolder* checkpoint,
                                            const FolderTensors& tensors,
                                            const TensorWriting& writing,
                                            const FolderWriter& folder);

}  // namespace millrace

#endif  // MILLRACE_SERVER_CONVERT_TENSOR_WRITER_H_
