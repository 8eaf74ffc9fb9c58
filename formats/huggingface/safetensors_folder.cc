#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "base/status.h"
#include "formats/families/hf_names.h"
#include "formats/huggingface/safetensors.h"
#include "formats/json/json.h"

namespace millrace {
namespace {

constexpr char kSingle[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr char kExtension[] = ".safetensors";
constexpr size_t kMaxIndexBytes = 64 << 20;
constexpr size_t kMaxFiles = 1024;

absl::Status BadIndex(std::string_view field, std::string_view what) {
  return absl::InvalidArgumentError(StrCat(kIndex, ": ", field, ": ", what));
}

// Returns the names of the files of an index. Which tensor is in which file, files themselves say:
// transformers does not read it here either, and tools that change tensors leave it behind.
absl::StatusOr<std::set<std::string>> ReadIndex(const std::string& path) {
  MILLRACE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  if (file.bytes().size() > kMaxIndexBytes) {
    return BadIndex("size",
                    StrCat(file.bytes().size(), " bytes, must be at most ", kMaxIndexBytes));
  }
  const absl::StatusOr<Json> index =
      ParseJson({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                JsonLimits{.depth = 4});
  if (!index.ok()) return BadIndex("index", std::string(index.status().message()));
  if (!index->is_object() || !index->contains("weight_map") ||
      !(*index)["weight_map"].is_object()) {
    return BadIndex("weight_map", "is missing or no object");
  }
  std::set<std::string> files;
  for (const auto& [tensor, value] : (*index)["weight_map"].items()) {
    const std::string field = StrCat("weight_map, tensor ", Printable(tensor));
    // A name and no path: what lies elsewhere is none of the model's.
    if (!value.is_string() || value.get_ref<const std::string&>().find('/') != std::string::npos ||
        !value.get_ref<const std::string&>().ends_with(kExtension)) {
      return BadIndex(field, StrCat("is ", Describe(value), ", must be the name of a ", kExtension,
                                    " file of the folder"));
    }
    files.insert(value.get<std::string>());
    if (files.size() > kMaxFiles) return BadIndex(field, StrCat("more than ", kMaxFiles, " files"));
  }
  return files;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFolder>> SafetensorsFolder::Open(
    const std::string& folder, std::string base_name, const Family& family, bool tied) {
  const std::filesystem::path path(folder);
  std::error_code error;
  std::set<std::string> files;
  if (std::filesystem::exists(path / kSingle, error)) {
    files.insert(kSingle);
  } else if (std::filesystem::exists(path / kIndex, error)) {
    MILLRACE_ASSIGN_OR_RETURN(files, ReadIndex(path / kIndex));
  } else {
    return absl::NotFoundError(StrCat(base_name, ": has neither ", kSingle, " nor ", kIndex));
  }
  std::unique_ptr<SafetensorsFolder> opened(
      new SafetensorsFolder(std::move(base_name), family, tied));
  for (const std::string& name : files) {
    MILLRACE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path / name));
    MILLRACE_RETURN_IF_ERROR(opened->Add(std::move(file)));
  }
  const auto gguf_name = [&family](std::string_view name) { return StackedGgufName(name, family); };
  MILLRACE_RETURN_IF_ERROR(
      Annotate(opened->tensors_.CutExperts(gguf_name, family.gate_order), opened->base_name_));
  return opened;
}

absl::Status SafetensorsFolder::Add(SafetensorsFile file) {
  const int number = static_cast<int>(files_.size());
  for (TensorInfo& tensor : file.tensors) {
    tensor.file = number;
    if (const TensorInfo* other = tensors_.Find(tensor.name)) {
      return absl::InvalidArgumentError(StrCat(file.file.base_name(), ": tensor ",
                                               Printable(tensor.name), ": is in ",
                                               files_[other->file].file.base_name(), " as well"));
    }
    const std::string_view name = tensor.name;
    tensors_.Add(std::move(tensor), name);
  }
  file.tensors.clear();
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status SafetensorsFolder::AddModule(const std::string& folder, const std::string& module,
                                          const std::string& name) {
  constexpr std::string_view kLinear = "linear.";
  const std::filesystem::path path = std::filesystem::path(folder) / module / kSingle;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return absl::NotFoundError(StrCat(base_name_, ": ", module, " has no ", kSingle));
  }
  MILLRACE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
  for (size_t i = 0; i < file.tensors.size(); ++i) {
    std::string_view part = file.tensors[i].name;
    if (part.starts_with(kLinear)) part.remove_prefix(kLinear.size());
    module_names_.push_back(StrCat(name, ".", part));
    file.tensors[i].name = module_names_.back();
  }
  return Add(std::move(file));
}

const TensorInfo* SafetensorsFolder::FindTensor(std::string_view name) const {
  if (const TensorInfo* cut = tensors_.Find(name)) return cut;
  // A model that was saved without its head has its names without this.
  constexpr std::string_view kBody = "model.";
  for (const std::string& spelling : HfNames(name, family_)) {
    if (const TensorInfo* tensor = tensors_.Find(spelling)) return tensor;
    if (!spelling.starts_with(kBody)) continue;
    if (const TensorInfo* tensor = tensors_.Find(spelling.substr(kBody.size()))) return tensor;
  }
  if (tied_ && name == "token_embd.weight") return FindTensor("output.weight");
  return nullptr;
}

std::string SafetensorsFolder::NameInFile(std::string_view name) const {
  if (const TensorInfo* tensor = FindTensor(name)) return Printable(tensor->name);
  std::string usual = HfNames(name, family_)[0];
  // What a family takes for a part of a tensor has GGUF's name of that part.
  if (usual != name) return usual.starts_with("blk.") ? NameInFile(usual) : usual;
  // An expert of a family that stores all of a layer's in one tensor.
  const StackedName stacked = StackedNameOf(name);
  for (const std::string& candidate : stacked.tensors) {
    const std::string in_file = HfNames(candidate, family_)[0];
    if (in_file != candidate) return StrCat(in_file, ", expert ", stacked.expert);
  }
  if (const std::string both = SharedGateUpName(name); !both.empty()) {
    std::string in_file = HfNames(both, family_)[0];
    if (in_file != both) return in_file;
  }
  return usual;
}

int SafetensorsFolder::FileDescriptor(const TensorInfo& tensor) const {
  return files_[tensor.file].file.fd();
}

void SafetensorsFolder::DropPages(const TensorInfo& tensor) const {
  files_[tensor.file].file.DropPages(Extent(tensor));
}

void SafetensorsFolder::DropPages() const {
  for (const SafetensorsFile& file : files_) file.file.DropPages(file.file.bytes());
}

}  // namespace millrace
