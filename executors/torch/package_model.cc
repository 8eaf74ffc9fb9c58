#include "executors/torch/package_model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <link.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/headeronly/version.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "executors/cpu/cpu_model.h"
#include "executors/torch/exceptions.h"
#include "executors/torch/package_spec.h"

namespace millrace::aten {
namespace {

namespace fs = std::filesystem;
using torch::inductor::AOTIModelPackageLoader;

constexpr char kName[] = "model";  // what aoti_compile_and_package calls the only one in a package

at::ScalarType ScalarTypeOf(DataType type) {
  switch (type) {
    case DataType::kBool:
      return at::kBool;
    case DataType::kUint8:
      return at::kByte;
    case DataType::kInt8:
      return at::kChar;
    case DataType::kInt16:
      return at::kShort;
    case DataType::kInt32:
      return at::kInt;
    case DataType::kInt64:
      return at::kLong;
    case DataType::kFp16:
      return at::kHalf;
    case DataType::kBf16:
      return at::kBFloat16;
    case DataType::kFp32:
      return at::kFloat;
    case DataType::kFp64:
      return at::kDouble;
  }
  return at::kFloat;
}

at::Tensor ToAten(const Tensor& from) {
  at::Tensor to = at::empty(from.shape, ScalarTypeOf(from.type));
  if (!from.data.empty()) std::memcpy(to.mutable_data_ptr(), from.data.data(), from.data.size());
  return to;
}

class PackageModel : public TensorModel {
 public:
  PackageModel(std::unique_ptr<AOTIModelPackageLoader> package, TensorModelInfo info)
      : package_(std::move(package)), info_(std::move(info)) {}

  const TensorModelInfo& info() const override { return info_; }

  absl::StatusOr<std::vector<Tensor>> Run(std::vector<Tensor> inputs) override {
    try {
      return RunOrThrow(inputs);
    } catch (const std::exception&) {
      // All that LibTorch says is that a call failed; it has written why to stderr.
      return absl::InternalError("the model's code failed on these inputs");
    }
  }

 private:
  absl::StatusOr<std::vector<Tensor>> RunOrThrow(const std::vector<Tensor>& inputs) {
    const c10::InferenceMode inference;
    std::vector<at::Tensor> in;
    for (const Tensor& input : inputs) in.push_back(ToAten(input));
    const std::vector<at::Tensor> out = package_->boxed_run(std::move(in));
    if (out.size() != info_.outputs.size()) {
      return absl::InternalError(
          StrCat("the model's code gave ", out.size(), " outputs, not ", info_.outputs.size()));
    }
    std::vector<Tensor> results;
    for (size_t i = 0; i < out.size(); ++i) {
      const TensorSpec& spec = info_.outputs[i];
      if (out[i].scalar_type() != ScalarTypeOf(spec.type)) {
        return absl::InternalError(StrCat("the model's code gave output ", spec.name, " as ",
                                          at::toString(out[i].scalar_type()), ", not ",
                                          DataTypeName(spec.type)));
      }
      const at::Tensor values = out[i].contiguous();
      results.push_back({.type = spec.type,
                         .shape = values.sizes().vec(),
                         .data = std::string(static_cast<const char*>(values.const_data_ptr()),
                                             values.nbytes())});
    }
    return results;
  }

  std::unique_ptr<AOTIModelPackageLoader> package_;
  const TensorModelInfo info_;
};

using Metadata = std::unordered_map<std::string, std::string>;

std::string Value(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : found->second;
}

// What can be known before its code is in the process.
absl::StatusOr<PackageSpec> CheckMetadata(const Metadata& metadata) {
  const std::string own = Value(metadata, "millrace");
  if (own.empty()) {
    return absl::InvalidArgumentError(
        "does not say what its inputs are; allowed: packages made by scripts/export_package.sh");
  }
  absl::StatusOr<PackageSpec> spec = ReadPackageSpec(own);
  if (!spec.ok()) return Annotate(spec.status(), "metadata");
  if (spec->torch != TORCH_VERSION) {
    return absl::UnimplementedError(
        StrCat("was made by PyTorch ", Printable(spec->torch), "; allowed: ", TORCH_VERSION));
  }
  const std::string device = Value(metadata, "AOTI_DEVICE_KEY");
  if (device != "cpu") {
    return absl::UnimplementedError(
        StrCat("was compiled for ", Printable(device), "; allowed: cpu"));
  }
  MILLRACE_RETURN_IF_ERROR(CheckInstructionSets(Value(metadata, "AOTI_CPU_ISA")));
  return spec;
}

// What LibTorch has unpacked into /tmp/XXXXXX and opened.
int CollectUnpacked(dl_phdr_info* library, size_t, void* folders) {
  constexpr std::string_view kTmp = "/tmp/";
  const std::string_view path = library->dlpi_name;
  const size_t end = kTmp.size() + std::strlen("XXXXXX");
  if (path.starts_with(kTmp) && path.find('/', kTmp.size()) == end &&
      path.find("/data/aotinductor/") != path.npos) {
    static_cast<std::vector<fs::path>*>(folders)->push_back(path.substr(0, end));
  }
  return 0;
}

// LibTorch keeps what it unpacked until the model goes, and for good where a signal ends the
// process. Nothing reads it once it is in memory.
void RemoveUnpacked() {
  std::vector<fs::path> folders;
  dl_iterate_phdr(&CollectUnpacked, &folders);
  std::error_code ignored;  // then it stays
  for (const fs::path& folder : folders) fs::remove_all(folder, ignored);
}

absl::StatusOr<std::unique_ptr<TensorModel>> Load(const std::string& path, int threads) {
  MILLRACE_ASSIGN_OR_RETURN(
      PackageSpec spec,
      CheckMetadata(AOTIModelPackageLoader::load_metadata_from_package(path, kName)));
  at::set_num_threads(threads > 0 ? threads : cpu::UsableCores());
  auto package = std::make_unique<AOTIModelPackageLoader>(path, kName);
  RemoveUnpacked();
  return std::make_unique<PackageModel>(std::move(package),
                                        TensorModelInfo{.platform = "pytorch_aotinductor",
                                                        .inputs = std::move(spec.inputs),
                                                        .outputs = std::move(spec.outputs)});
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorModel>> LoadPackage(const ModelSpec& model,
                                                         const DeviceSpec& device) {
  const std::string name = fs::path(model.path).filename();
  std::error_code error;
  if (!fs::is_regular_file(model.path, error)) {
    return absl::NotFoundError(StrCat("model: ", Printable(name), " is no file here"));
  }
  try {
    auto loaded = Load(model.path, device.threads);
    return loaded.ok() ? std::move(loaded) : Annotate(loaded.status(), Printable(name));
  } catch (const std::exception& thrown) {
    return Annotate(FromException(absl::StatusCode::kInvalidArgument, thrown), Printable(name));
  }
}

}  // namespace millrace::aten
