// Finds a chunk's elements in its file: in the zip archive that torch.save wrote for it, or in the
// safetensors that a rank's tensors were written as.
#ifndef MILLRACE_FORMATS_DISTRIBUTED_STORED_CHUNK_H_
#define MILLRACE_FORMATS_DISTRIBUTED_STORED_CHUNK_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "formats/distributed/checkpoint_metadata.h"
#include "formats/json/json.h"

namespace millrace {

// The elements of a chunk. Element [i, j, …] begins at (i * strides[0] + j * strides[1] + …) *
// TorchType::bytes, and lies inside whatever the indices below the chunk's sizes.
struct StoredChunk {
  absl::Span<const uint8_t> bytes;
  std::vector<int64_t> strides;
  bool contiguous = true;  // they follow each other in row-major order
};

// Returns whether a chunk is a zip archive of its own.
bool IsZip(absl::Span<const uint8_t> file, const CheckpointChunk& chunk);

// Reads a chunk of a tensor from its archive. `file` are the bytes of its file, in which the chunk
// lies. INVALID_ARGUMENT for what is damaged, too short or of another type or shape than the
// checkpoint says; UNIMPLEMENTED, by its name, for a class that is not read. Messages name neither
// the file nor the tensor.
absl::StatusOr<StoredChunk> ReadZipChunk(absl::Span<const uint8_t> file,
                                         const CheckpointTensor& tensor,
                                         const CheckpointChunk& chunk);

// The tensors of a safetensors file that begins inside of another file.
struct ChunkHeader {
  Json tensors;             // the header
  uint64_t data_begin = 0;  // in the file around it
};
absl::StatusOr<ChunkHeader> ReadChunkHeader(absl::Span<const uint8_t> file, uint64_t offset);

// Reads a chunk from there, by the tensor's name. Errors as above.
absl::StatusOr<StoredChunk> ReadSafetensorsChunk(absl::Span<const uint8_t> file,
                                                 const ChunkHeader& header,
                                                 const CheckpointTensor& tensor,
                                                 const CheckpointChunk& chunk);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_DISTRIBUTED_STORED_CHUNK_H_
