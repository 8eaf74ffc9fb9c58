// The executor of a GPU.
#ifndef MILLRACE_EXECUTORS_CUDA_CUDA_EXECUTOR_H_
#define MILLRACE_EXECUTORS_CUDA_CUDA_EXECUTOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/device_spec.h"
#include "executors/executor.h"
#include "executors/nodes.h"

namespace millrace::cuda {

// `nodes`: all that the ranks are spread over, which outlive the executor; null: this process
// alone.
absl::StatusOr<std::unique_ptr<Executor>> LoadCudaExecutor(const ModelSpec& model,
                                                           const CudaSpec& device,
                                                           Nodes* nodes = nullptr);

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_CUDA_EXECUTOR_H_
