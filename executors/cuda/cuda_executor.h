// Runs a model on a GPU.
#ifndef MILLRACE_EXECUTORS_CUDA_CUDA_EXECUTOR_H_
#define MILLRACE_EXECUTORS_CUDA_CUDA_EXECUTOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/executor.h"
#include "executors/factory.h"

namespace millrace::cuda {

absl::StatusOr<std::unique_ptr<Executor>> LoadCudaExecutor(const ModelSpec& model,
                                                           const DeviceSpec& device);

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_CUDA_EXECUTOR_H_
