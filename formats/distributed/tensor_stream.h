// Reads a tensor of a checkpoint from its first element to its last, whatever its chunks.
#ifndef MILLRACE_FORMATS_DISTRIBUTED_TENSOR_STREAM_H_
#define MILLRACE_FORMATS_DISTRIBUTED_TENSOR_STREAM_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "formats/distributed/checkpoint_folder.h"

namespace millrace {

// Holds no more of the files in memory than kResidentBytes, whatever the tensor's size.
class TensorStream {
 public:
  static constexpr uint64_t kResidentBytes = 256 << 20;

  // Finds all chunks of a tensor. The folder outlives the stream. Errors are those of
  // CheckpointFolder::Chunk.
  static absl::StatusOr<TensorStream> Open(CheckpointFolder* folder,
                                           const CheckpointTensor& tensor);

  // Reads the next out.size() bytes, whole elements of which as many are left, in row-major order.
  // INVALID_ARGUMENT, naming the tensor, where chunks overlap.
  absl::Status Read(absl::Span<uint8_t> out);

 private:
  // A run is a part of a chunk whose elements follow each other in the tensor. The runs of a chunk
  // have the same length, and an ascending order.
  struct Cursor {
    const CheckpointChunk* chunk;
    StoredChunk stored;
    int64_t run_elements;
    size_t run_dims;       // the dimensions whose indices number the runs
    int64_t run = 0;       // the run that comes next, or has begun
    int64_t done = 0;      // elements of it that were read
    int64_t begin = 0;     // its first element in the tensor
    uint64_t dropped = 0;  // bytes of `stored` in front that are dropped
  };

  TensorStream(CheckpointFolder* folder, const CheckpointTensor& tensor)
      : folder_(folder), tensor_(&tensor) {}

  // Returns the element of the tensor where a run begins.
  int64_t RunBegin(const Cursor& cursor) const;
  // Returns where an element of the run lies, in elements from the front of `stored`.
  static int64_t Place(const Cursor& cursor, int64_t element);
  void Copy(const Cursor& cursor, int64_t elements, uint8_t* out) const;
  void Drop(Cursor* cursor, bool all) const;

  CheckpointFolder* folder_;
  const CheckpointTensor* tensor_;
  std::vector<int64_t> strides_;  // of the tensor, in elements
  std::vector<Cursor> cursors_;
  std::vector<size_t> heap_;  // of cursors_ with runs left, the one that begins first in front
  int64_t next_ = 0;          // the element that is read next
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_DISTRIBUTED_TENSOR_STREAM_H_
