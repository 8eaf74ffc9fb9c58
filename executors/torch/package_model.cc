#include "executors/torch/package_model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <cstring>
#include <string>
#include <utility>

#include "base/control_group.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/torch/exceptions.h"
#include "executors/torch/package_file.h"

namespace millrace::aten {
namespace {

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
  PackageModel(std::unique_ptr<PackageCode> package, TensorModelInfo info)
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

  std::unique_ptr<PackageCode> package_;
  const TensorModelInfo info_;
};

absl::StatusOr<std::unique_ptr<TensorModel>> Load(const std::string& path, int threads) {
  MILLRACE_ASSIGN_OR_RETURN(PackageSpec spec, CheckPackage(path));
  if (spec.causal_lm.has_value()) {
    return absl::InvalidArgumentError(
        "is a language model; allowed without --tokenizer: a package that takes tensors");
  }
  at::set_num_threads(threads > 0 ? threads : UsableCores());
  return std::make_unique<PackageModel>(LoadPackageCode(path),
                                        TensorModelInfo{.platform = "pytorch_aotinductor",
                                                        .inputs = std::move(spec.inputs),
                                                        .outputs = std::move(spec.outputs)});
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorModel>> LoadPackage(const ModelSpec& model,
                                                         const TorchSpec& device) {
  return OpenNamed(model.path, [&] { return Load(model.path, device.threads); });
}

}  // namespace millrace::aten
