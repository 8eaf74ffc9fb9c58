// Runs a model through LibTorch, on the processor's own cores: the reference for the other devices.
#ifndef MILLRACE_EXECUTORS_TORCH_TORCH_EXECUTOR_H_
#define MILLRACE_EXECUTORS_TORCH_TORCH_EXECUTOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/device_spec.h"
#include "executors/executor.h"
#include "executors/tensor_model.h"

namespace millrace::aten {

// Opens libmillrace_torch.so, which lies beside the program, when it is first called; it stays.
// Unimplemented where that cannot be opened.
absl::StatusOr<std::unique_ptr<Executor>> LoadTorchExecutor(const ModelSpec& model,
                                                            const TorchSpec& device);

// Loads an AOTInductor package (package_model.h).
absl::StatusOr<std::unique_ptr<TensorModel>> LoadTorchPackage(const ModelSpec& model,
                                                              const TorchSpec& device);

}  // namespace millrace::aten

#endif  // MILLRACE_EXECUTORS_TORCH_TORCH_EXECUTOR_H_
