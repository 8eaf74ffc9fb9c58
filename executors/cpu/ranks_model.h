// A model on several ranks of this process and, perhaps, of other ones.
#ifndef MILLRACE_EXECUTORS_CPU_RANKS_MODEL_H_
#define MILLRACE_EXECUTORS_CPU_RANKS_MODEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/cpu/kernels/kernels.h"
#include "executors/device_spec.h"
#include "executors/host/host_executor.h"
#include "executors/nodes.h"

namespace millrace::cpu {

// Loads device.tensor_parallel_size ranks, or this node's part of them, and warms them up. Each
// runs its part of every step on a thread of its own, op by op beside the others: where they add or
// gather values, they wait for one another. `nodes`: all that the ranks are spread over; null: this
// process alone. Errors name the file or the setting.
absl::StatusOr<std::unique_ptr<HostModel>> LoadRanksModel(const ModelSpec& model,
                                                          const CpuSpec& device,
                                                          const Kernels& kernels, Nodes* nodes);

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_RANKS_MODEL_H_
