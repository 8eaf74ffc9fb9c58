// For tests: a model on several ranks of one process.
#ifndef MILLRACE_EXECUTORS_CPU_RANKS_TEST_UTIL_H_
#define MILLRACE_EXECUTORS_CPU_RANKS_TEST_UTIL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/cpu/kernels.h"
#include "executors/device_spec.h"
#include "executors/executor.h"

namespace millrace::cpu {

// Loads each rank's share of the model, with a KV cache of its own. Every rank runs each step on
// its own thread, op by op beside the others: where ranks must add or gather values, they wait for
// one another. `expert_parallel`: RankSpec's. Ends the program when a rank cannot be loaded.
std::unique_ptr<Executor> LoadCpuRanks(const ModelSpec& model, const CpuSpec& device, int ranks,
                                       bool expert_parallel = false,
                                       const Kernels& kernels = BestKernels());

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_RANKS_TEST_UTIL_H_
