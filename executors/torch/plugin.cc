#include "executors/torch/package_model.h"
#include "executors/torch/torch_model.h"

extern "C" __attribute__((visibility("default"))) void MillraceLoadTorchModel(
    const millrace::ModelSpec& model, const millrace::TorchSpec& device,
    absl::StatusOr<std::unique_ptr<millrace::HostModel>>* loaded) {
  *loaded = millrace::aten::LoadTorchModel(model, device);
}

extern "C" __attribute__((visibility("default"))) void MillraceLoadTorchPackage(
    const millrace::ModelSpec& model, const millrace::TorchSpec& device,
    absl::StatusOr<std::unique_ptr<millrace::TensorModel>>* loaded) {
  *loaded = millrace::aten::LoadPackage(model, device);
}
