// The executor of a GPU.
#ifndef MILLRACE_EXECUTORS_CUDA_CUDA_EXECUTOR_H_
#define MILLRACE_EXECUTORS_CUDA_CUDA_EXECUTOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/device_spec.h"
#include "executors/executor.h"

namespace millrace::cuda {

absl::StatusOr<std::unique_ptr<Executor>> LoadCudaExecutor(const ModelSpec& model,
                                                           const CudaSpec& device);

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_CUDA_EXECUTOR_H_
