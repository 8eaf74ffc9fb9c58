// A folder that torch.distributed.checkpoint has written: `.metadata`, and the files of the ranks.
#ifndef MILLRACE_FORMATS_DISTRIBUTED_CHECKPOINT_FOLDER_H_
#define MILLRACE_FORMATS_DISTRIBUTED_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/distributed/checkpoint_metadata.h"
#include "formats/distributed/stored_chunk.h"
#include "formats/files/mapped_file.h"

namespace millrace {

// Returns whether a folder is one.
bool IsCheckpointFolder(const std::string& folder);

// All files of one folder, mapped. For one thread.
class CheckpointFolder {
 public:
  // Reads `.metadata`, and checks that every chunk of a tensor of the model lies inside of its
  // file. Errors name the file or the tensor: NOT_FOUND for what is missing, INVALID_ARGUMENT and
  // UNIMPLEMENTED as ReadCheckpointMetadata has them.
  static absl::StatusOr<CheckpointFolder> Open(const std::string& folder);

  const CheckpointMetadata& metadata() const { return metadata_; }

  // Finds a chunk's elements. The view holds as long as this object. Errors name the tensor and the
  // file.
  absl::StatusOr<StoredChunk> Chunk(const CheckpointTensor& tensor, const CheckpointChunk& chunk);

  // Drops a part of a chunk's bytes from this process's resident memory.
  void DropPages(const CheckpointChunk& chunk, absl::Span<const uint8_t> bytes) const {
    files_[chunk.file].DropPages(bytes);
  }

 private:
  CheckpointMetadata metadata_;
  std::vector<MappedFile> files_;  // as CheckpointMetadata::files has them
  std::map<std::pair<int, uint64_t>, ChunkHeader> headers_;  // by file and offset
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_DISTRIBUTED_CHECKPOINT_FOLDER_H_
