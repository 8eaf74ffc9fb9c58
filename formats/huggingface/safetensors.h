// Reader of safetensors files.
// Format: https://github.com/huggingface/safetensors#format
#ifndef MILLRACE_FORMATS_HUGGINGFACE_SAFETENSORS_H_
#define MILLRACE_FORMATS_HUGGINGFACE_SAFETENSORS_H_

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/strings.h"
#include "formats/files/mapped_file.h"
#include "formats/tensors/tensor_list.h"
#include "formats/tensors/tensor_source.h"

namespace millrace {

struct Family;

// One memory-mapped file. Open() checks the whole header: its length, that it is JSON within
// bounds without a key twice, every type and shape, and that the tensors fill the data without a
// hole or an overlap. Numbers inside tensors are not looked at.
//
// Errors name the file (its base name) and the field: INVALID_ARGUMENT for a damaged or lying file,
// UNIMPLEMENTED for a tensor of another type than F32, F16, BF16, F8_E4M3, U8, I32 and I64,
// NOT_FOUND for a missing file.
struct SafetensorsFile {
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  MappedFile file;
  std::vector<std::string> names;   // of the tensors, which view them
  std::vector<TensorInfo> tensors;  // in the file's order
};

// The tensors of a Hugging Face folder: of `model.safetensors`, or of the files that
// `model.safetensors.index.json` names. No tensor comes twice. Looked up by GGUF names, translated
// by formats/families/hf_names.h; those of all experts of a layer are cut into single experts'
// (formats/tensors/tensor_list.h).
class SafetensorsFolder : public TensorSource {
 public:
  // Opens a folder's safetensors files. NOT_FOUND, naming both, if the folder has neither a single
  // file nor an index. `base_name` is the folder's, for messages. Of `tied` models the head is the
  // embedding where the folder has no other.
  static absl::StatusOr<std::unique_ptr<SafetensorsFolder>> Open(const std::string& folder,
                                                                 std::string base_name,
                                                                 const Family& family,
                                                                 bool tied = false);

  // Adds the tensors of another file in a folder inside of this one, "<module>.linear.weight" by
  // the name "<name>.weight" and so on. NOT_FOUND if there is no model.safetensors.
  absl::Status AddModule(const std::string& folder, const std::string& module,
                         const std::string& name);

  const std::string& base_name() const override { return base_name_; }
  absl::Span<const TensorInfo> tensors() const override { return tensors_.tensors(); }
  const TensorInfo* FindTensor(std::string_view name) const override;
  std::string NameInFile(std::string_view name) const override;
  int FileDescriptor(const TensorInfo& tensor) const override;
  void DropPages(const TensorInfo& tensor) const override;
  void DropPages() const override;

 protected:
  absl::Span<const uint8_t> FileBytes(int file) const override { return files_[file].file.bytes(); }

 private:
  SafetensorsFolder(std::string base_name, const Family& family, bool tied)
      : base_name_(std::move(base_name)), family_(family), tied_(tied) {}
  absl::Status Add(SafetensorsFile file);

  std::string base_name_;
  const Family& family_;
  const bool tied_;
  std::vector<SafetensorsFile> files_;    // without their tensors
  std::deque<std::string> module_names_;  // of the tensors that AddModule added
  TensorList tensors_;                    // of all files, by HF names
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_HUGGINGFACE_SAFETENSORS_H_
