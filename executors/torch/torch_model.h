// A model in LibTorch's tensors, ready to run steps. No header of LibTorch's is seen here.
#ifndef MILLRACE_EXECUTORS_TORCH_TORCH_MODEL_H_
#define MILLRACE_EXECUTORS_TORCH_TORCH_MODEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/device_spec.h"
#include "executors/host/host_executor.h"

namespace millrace::aten {

// Errors name the file or the setting. Logs nothing: in a plugin's copy of base/log.h, levels and
// format are not what the server was told.
absl::StatusOr<std::unique_ptr<HostModel>> LoadTorchModel(const ModelSpec& model,
                                                          const TorchSpec& device);

}  // namespace millrace::aten

// libmillrace_torch.so exports it: LoadTorchModel.
extern "C" void MillraceLoadTorchModel(
    const millrace::ModelSpec& model, const millrace::TorchSpec& device,
    absl::StatusOr<std::unique_ptr<millrace::HostModel>>* loaded);

#endif  // MILLRACE_EXECUTORS_TORCH_TORCH_MODEL_H_
