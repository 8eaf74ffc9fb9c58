// Runs a model on the processor's own cores.
#ifndef MILLRACE_EXECUTORS_CPU_CPU_EXECUTOR_H_
#define MILLRACE_EXECUTORS_CPU_CPU_EXECUTOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/cpu/kernels/kernels.h"
#include "executors/device_spec.h"
#include "executors/executor.h"
#include "executors/nodes.h"

namespace millrace::cpu {

// `kernels`: of this machine; the best by default. One rank is the whole model, and its step runs
// on the executor's own thread. `nodes`: those that the ranks are spread over; they outlive the
// executor.
absl::StatusOr<std::unique_ptr<Executor>> LoadCpuExecutor(const ModelSpec& model,
                                                          const CpuSpec& device,
                                                          const Kernels& kernels = BestKernels(),
                                                          Nodes* nodes = nullptr);

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_CPU_EXECUTOR_H_
