#include "formats/files/other_files.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "formats/files/folder_file.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr char kMerge[] =
    "adapters are not applied: merge it into its base model (PEFT's merge_and_unload) and serve "
    "what that gives";
constexpr size_t kMaxHeader = 1 << 20;  // bytes of a safetensors header that are searched

std::string_view TextOf(absl::Span<const uint8_t> bytes, size_t most) {
  return {reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), most)};
}

// Returns the header of a safetensors file; empty for other files.
std::string_view SafetensorsHeader(absl::Span<const uint8_t> bytes) {
  uint64_t size;
  if (bytes.size() < sizeof(size) + 2) return {};
  std::memcpy(&size, bytes.data(), sizeof(size));
  if (size < 2 || size > bytes.size() - sizeof(size) || bytes[sizeof(size)] != '{') return {};
  return TextOf(bytes.subspan(sizeof(size)), std::min<uint64_t>(size, kMaxHeader));
}

// Returns the names of a folder's files, in order.
std::vector<std::string> Files(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Returns the first name with one of these endings; empty for none.
std::string FirstWith(const std::vector<std::string>& names,
                      std::initializer_list<std::string_view> endings) {
  for (const std::string& name : names) {
    for (const std::string_view ending : endings) {
      if (name.ends_with(ending)) return name;
    }
  }
  return {};
}

// Returns " of org/name", the adapter's base model, where its config says so.
std::string OfBase(const fs::path& folder, const std::string& config) {
  const absl::StatusOr<Json> json = ReadFolderJson(folder, config, 1 << 20);
  if (!json.ok()) return {};
  const Json* base = FindField(*json, "base_model_name_or_path");
  if (base == nullptr || !base->is_string()) return {};
  return StrCat(" of ", Printable(base->get_ref<const std::string&>(), 256));
}

// Says of a folder of the hub's cache (models--org--name) which one to name instead.
absl::Status CacheFolderError(const fs::path& folder) {
  std::string name = folder.filename().string();
  if (name.starts_with("models--")) name.erase(0, 8);
  if (const size_t slash = name.find("--"); slash != name.npos) name.replace(slash, 2, "/");
  const std::vector<std::string> snapshots = Files(folder / "snapshots");
  return absl::NotFoundError(StrCat(
      "config.json: the folder has none, as it is one of the hub's cache: name the model, ",
      Printable(name),
      snapshots.empty() ? "" : StrCat(", or its folder snapshots/", Printable(snapshots.front()))));
}

}  // namespace

std::string DescribeOtherFile(absl::Span<const uint8_t> bytes) {
  if (const std::string_view header = SafetensorsHeader(bytes); !header.empty()) {
    if (header.find("lora_A") != header.npos || header.find("lora_down") != header.npos) {
      return StrCat("a LoRA adapter in a safetensors file; ", kMerge);
    }
    return "a safetensors file; name the folder that it is in, which has config.json beside it";
  }
  constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
      {"tjgg", "a GGML file, the format before GGUF; take a GGUF file of the model"},
      {"fmgg", "a GGML file, the format before GGUF; take a GGUF file of the model"},
      {"lmgg", "a GGML file, the format before GGUF; take a GGUF file of the model"},
      {"algg", "a LoRA adapter of the format before GGUF; take a model"},
      {"FUGG", "a GGUF file of big-endian numbers; take one for little-endian machines"},
      {"PK\x03\x04",
       "a zip file, as PyTorch writes (.bin, .pt); take the model as safetensors or GGUF"},
      {"\x80\x02",
       "a pickle, as PyTorch writes (.bin, .pt); take the model as safetensors or GGUF"},
      {"\x89HDF", "an HDF5 file (.h5); take the model as safetensors or GGUF"},
      {"\x1f\x8b", "compressed by gzip; unpack it"},
      {"\x7f"
       "ELF",
       "a program; take a GGUF file of the model"},
      {"<!DOCTYPE", "a web page: a download that went wrong; fetch the file itself"},
      {"<!doctype", "a web page: a download that went wrong; fetch the file itself"},
      {"<html", "a web page: a download that went wrong; fetch the file itself"},
      {"{", "JSON; name the folder that it is in, or a GGUF file"},
  };
  for (const auto& [begin, kind] : kKinds) {
    if (TextOf(bytes, begin.size()) == begin) return std::string(kind);
  }
  return {};
}

absl::Status CheckNotPointer(absl::Span<const uint8_t> bytes) {
  constexpr std::string_view kPointer = "version https://git-lfs.github.com/spec/";
  if (TextOf(bytes, kPointer.size()) != kPointer) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "is git-LFS's pointer to the file and not the file itself: run `git lfs pull` in its folder, "
      "or fetch it anew");
}

absl::Status CheckGgufIsModel(std::string_view architecture, std::string_view type) {
  std::string what;
  if (type == "mmproj" || architecture == "clip") {
    what =
        "is the projector (mmproj) of a model that sees or hears, which is not read; name the "
        "model's own GGUF file";
  } else if (type == "adapter") {
    what = StrCat("is a LoRA adapter; ", kMerge);
  } else if (architecture == "controlvector" || type == "control_vector") {
    what = "is a control vector, which is not read; name a model's GGUF file";
  } else if (type == "imatrix" || architecture == "imatrix") {
    what = "is an importance matrix, which quantizers read; name a model's GGUF file";
  } else {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(what);
}

absl::Status CheckFolderIsModel(const fs::path& folder) {
  constexpr char kConfig[] = "config.json";
  constexpr char kAdapter[] = "adapter_config.json";
  const bool has_config = HasFolderFile(folder, kConfig);
  const std::vector<std::string> files = Files(folder);
  const std::string adapter = FirstWith(
      files, {kAdapter, "adapter_model.safetensors", "adapter_model.bin", "adapters.safetensors"});
  if (!adapter.empty()) {
    const std::string base = OfBase(folder, kAdapter);
    if (!has_config) {
      return absl::UnimplementedError(
          StrCat(adapter, ": the folder holds a LoRA adapter", base, " and no model; ", kMerge));
    }
    return absl::UnimplementedError(
        StrCat(adapter, ": beside the model is a LoRA adapter", base, "; ", kMerge,
               ", or take the adapter's files away to serve the model without it"));
  }
  if (has_config) return absl::OkStatus();
  if (HasFolderFile(folder, "snapshots")) return CacheFolderError(folder);
  if (HasFolderFile(folder, "model_index.json")) {
    return absl::UnimplementedError(
        "model_index.json: the folder holds a pipeline of diffusers; allowed: a language model or "
        "an "
        "encoder");
  }
  if (HasFolderFile(folder, "params.json")) {
    return absl::UnimplementedError(
        "params.json: the folder is in its authors' own format; take the model in Hugging Face's, "
        "with config.json and safetensors, or as a GGUF file");
  }
  return absl::OkStatus();
}

absl::Status CheckNoOtherWeights(const fs::path& folder) {
  std::vector<std::string> files = Files(folder);
  if (const std::string gguf = FirstWith(files, {".gguf"}); !gguf.empty()) {
    return absl::NotFoundError(StrCat("model.safetensors: the folder has none, and has ",
                                      Printable(gguf), " beside config.json: name that file"));
  }
  // Those of a trainer's own state are no weights.
  std::erase_if(files, [](const std::string& name) {
    return name.ends_with(".bin") && !name.starts_with("pytorch_model");
  });
  const std::string other = FirstWith(files, {".bin", ".bin.index.json", ".pt", ".pth", ".h5",
                                              ".msgpack", ".onnx", ".nemo", ".ckpt"});
  if (other.empty()) return absl::OkStatus();
  return absl::UnimplementedError(
      StrCat(Printable(other),
             ": weights in this form are not read; allowed: safetensors (transformers' "
             "save_pretrained writes them) or a GGUF file"));
}

}  // namespace millrace
