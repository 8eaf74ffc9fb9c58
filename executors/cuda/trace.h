// What the GPU does, as CUPTI's activity records tell it.
#ifndef MILLRACE_EXECUTORS_CUDA_TRACE_H_
#define MILLRACE_EXECUTORS_CUDA_TRACE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/factory.h"

namespace millrace::cuda {

// CanTrace and StartTrace for GPUs. CUPTI is looked for as the loader looks for it
// (LD_LIBRARY_PATH, the system's folders) and where CUDA's toolkit installs it, when one of them is
// first called, and stays in the process from then on.
absl::Status CanTrace();
absl::StatusOr<std::unique_ptr<DeviceTrace>> StartCudaTrace();

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_TRACE_H_
