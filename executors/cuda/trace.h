// Traces of GPU activity by CUPTI's activity records.
#ifndef MILLRACE_EXECUTORS_CUDA_TRACE_H_
#define MILLRACE_EXECUTORS_CUDA_TRACE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/factory.h"

namespace millrace::cuda {

// CanTrace and StartTrace for GPUs. The first call of either loads CUPTI, which then stays in the
// process. It is searched for as the loader does (LD_LIBRARY_PATH, system folders) and where CUDA's
// toolkit installs it.
absl::Status CanTrace();
absl::StatusOr<std::unique_ptr<DeviceTrace>> StartCudaTrace();

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_TRACE_H_
