// A model's tensors, whatever the files that they lie in.
#ifndef MILLRACE_FORMATS_TENSORS_TENSOR_SOURCE_H_
#define MILLRACE_FORMATS_TENSORS_TENSOR_SOURCE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "formats/tensors/tensor.h"

namespace millrace {

struct PackedWeight;

// Tensors are looked up by their GGUF names ("blk.0.attn_q.weight"); a source of files that spell
// them otherwise translates (formats/families/hf_names.h). Immutable and thread-safe, but for the
// hint DropPages.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Returns the file's or the folder's base name, never its path, for messages.
  virtual const std::string& base_name() const = 0;

  // Returns all tensors. Their addresses hold for the source's life, also when it is moved.
  virtual absl::Span<const TensorInfo> tensors() const = 0;

  // Returns the tensor of this GGUF name; nullptr if there is none.
  virtual const TensorInfo* FindTensor(std::string_view name) const = 0;

  // Returns how the files spell a GGUF name, for messages about a tensor that may be missing.
  virtual std::string NameInFile(std::string_view name) const { return std::string(name); }

  // Returns whether the tensors have data. If not, there are shapes and types only, for dummy
  // weights, and nothing below but DropPages may be called.
  virtual bool has_data() const { return true; }

  // Returns the packed weight of a tensor that is made of others (formats/tensors/packed_weight.h)
  // and has no bytes of its own; nullptr for other tensors.
  virtual const PackedWeight* Packed(const TensorInfo&) const { return nullptr; }

  // Copies bytes [begin, begin + out.size()) of one of tensors() to `out`. Of a scattered tensor
  // those must be whole rows, and gathering them costs about as much as copying.
  void Read(const TensorInfo& tensor, uint64_t begin, absl::Span<uint8_t> out) const;

  // Returns the same bytes: a view into the mapping, or of a scattered tensor of `buffer`, which
  // takes them.
  absl::Span<const uint8_t> Bytes(const TensorInfo& tensor, uint64_t begin, uint64_t size,
                                  std::vector<uint8_t>* buffer) const;

  // Returns the bytes of one of tensors() that is not scattered, of any alignment, mapped: reading
  // them may read the disk.
  absl::Span<const uint8_t> Data(const TensorInfo& tensor) const {
    return FileBytes(tensor.file).subspan(tensor.offset, tensor.bytes);
  }

  // Returns the file that holds such a tensor, for pread from TensorInfo::offset on. Open for the
  // source's life.
  virtual int FileDescriptor(const TensorInfo& tensor) const = 0;

  // Drops pages from this process's resident memory: once a tensor has been placed, or all of
  // them. Reading again is allowed and takes the bytes from the page cache.
  virtual void DropPages(const TensorInfo& tensor) const = 0;
  virtual void DropPages() const = 0;

 protected:
  // Returns a whole file, mapped.
  virtual absl::Span<const uint8_t> FileBytes(int file) const = 0;

  // Returns FileBytes of another source, for a source that presents the tensors of that.
  static absl::Span<const uint8_t> FileBytes(const TensorSource& other, int file) {
    return other.FileBytes(file);
  }

  // Returns the part of its file that a tensor is read from, scales of MXFP4 left out.
  absl::Span<const uint8_t> Extent(const TensorInfo& tensor) const;
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TENSORS_TENSOR_SOURCE_H_
