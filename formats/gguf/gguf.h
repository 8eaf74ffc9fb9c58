// Reader of GGUF model files, versions 2 and 3, little-endian.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#ifndef MILLRACE_FORMATS_GGUF_GGUF_H_
#define MILLRACE_FORMATS_GGUF_GGUF_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/strings.h"
#include "formats/files/mapped_file.h"
#include "formats/tensors/tensor_list.h"
#include "formats/tensors/tensor_source.h"

namespace millrace {

// An array of numbers, as it lies in the file (unaligned), or of strings (views into the mapping).
struct GgufArray {
  std::string_view element_type;  // "uint8", "int32", "float32", "string", ...
  size_t count = 0;
  absl::Span<const uint8_t> bytes;        // count numbers; empty for strings
  std::vector<std::string_view> strings;  // count strings; empty for numbers
};

// Translates the name of a tensor in a file with this general.architecture (empty: it has none) to
// the name that the tensor is looked up by.
using GgufTensorNames = std::string (*)(std::string_view architecture,
                                        std::string_view name_in_file);

// A metadata value. Unsigned, signed and floating numbers of every width are widened.
using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray>;

// A memory-mapped GGUF file, or the files that one is split into (gguf_split.h), whose metadata the
// first of them has. Open() checks the whole header, so that whatever this class hands out
// lies inside the file: every count, length, offset, shape and type, that no name comes twice and
// that no two tensors overlap. Numbers inside tensors are not looked at.
//
// Errors name the file (its base name) and the field: INVALID_ARGUMENT for a damaged or lying file,
// UNIMPLEMENTED for what the format allows and we do not read, NOT_FOUND for a missing file or key.
//
// Thread-safe once open. Views stay valid for the object's life, also when it is moved.
class GgufFile : public TensorSource {
 public:
  // Opens the file and, where it is the first of several, the others, which lie beside it. Tensors
  // are looked up by what `names` makes of their names in the file; without it, by these.
  // OpenGgufModel (formats/gguf_model.h) opens the file of a model.
  static absl::StatusOr<GgufFile> Open(const std::string& path, GgufTensorNames names = nullptr);

  const std::string& base_name() const override { return files_[0].base_name(); }

  // Metadata. Find() returns nullptr for an absent key; the typed getters return NOT_FOUND for it
  // and INVALID_ARGUMENT for a value of another type or outside of [min, max].
  const GgufValue* Find(std::string_view key) const;
  absl::StatusOr<int64_t> Int(std::string_view key, int64_t min, int64_t max) const;
  absl::StatusOr<double> Float(std::string_view key) const;
  absl::StatusOr<bool> Bool(std::string_view key) const;
  absl::StatusOr<std::string_view> String(std::string_view key) const;
  absl::StatusOr<absl::Span<const std::string_view>> Strings(std::string_view key) const;
  absl::StatusOr<std::vector<int32_t>> Int32s(std::string_view key) const;
  // Returns the values of an array of integers of any width.
  absl::StatusOr<std::vector<int64_t>> Ints(std::string_view key) const;

  // Tensors, in the file's order, those of all experts of a layer cut into single experts'
  // (formats/tensors/tensor_list.h).
  absl::Span<const TensorInfo> tensors() const override { return tensors_.tensors(); }
  const TensorInfo* FindTensor(std::string_view name) const override;
  std::string NameInFile(std::string_view name) const override;

  int FileDescriptor(const TensorInfo& tensor) const override { return files_[tensor.file].fd(); }
  void DropPages(const TensorInfo& tensor) const override {
    files_[tensor.file].DropPages(Data(tensor));
  }
  void DropPages() const override {
    for (const MappedFile& file : files_) file.DropPages(file.bytes());
  }

 protected:
  absl::Span<const uint8_t> FileBytes(int file) const override { return files_[file].bytes(); }

 private:
  friend class GgufParser;
  explicit GgufFile(MappedFile file) { files_.push_back(std::move(file)); }

  // Reads the header of one file into an object without tensors, which go to `tensors` as the file
  // has them.
  static absl::StatusOr<GgufFile> Parse(const std::string& path, std::vector<TensorInfo>* tensors);
  // Adds the tensors of the other files, if this is the first of several at `path`.
  absl::Status AddParts(const std::string& path, std::vector<TensorInfo>* tensors);
  // Takes tensors by the names of `names` and in the shapes that models have.
  absl::Status ListTensors(absl::Span<TensorInfo> tensors, GgufTensorNames names);

  template <typename T>
  absl::StatusOr<const T*> Get(std::string_view key, std::string_view expected) const;

  std::vector<MappedFile> files_;
  absl::flat_hash_map<std::string_view, GgufValue, StringHash> metadata_;
  TensorList tensors_;
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_GGUF_GGUF_H_
