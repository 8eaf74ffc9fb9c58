// A model in the CPU's memory, ready to run steps.
#ifndef MILLRACE_EXECUTORS_CPU_CPU_MODEL_H_
#define MILLRACE_EXECUTORS_CPU_CPU_MODEL_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "executors/cpu/cpu_ops.h"
#include "executors/device_spec.h"
#include "executors/executor.h"
#include "executors/models/any_model.h"
#include "executors/models/memory_plan.h"
#include "executors/phase_timer.h"
#include "formats/open_model.h"

namespace millrace::cpu {

// One rank of a model, or all of it. Pinned in memory: the parts point to one another.
struct CpuModel {
  std::unique_ptr<ThreadPool> pool;
  CpuWeights weights;
  KvArena kv;
  AnyModel model;
  std::unique_ptr<CpuOps> ops;
  ModelInfo info;   // of all ranks of this process together; only the first one has it
  MemoryPlan plan;  // likewise

  // Runs one step. An error is an op's.
  absl::Status Run(const StepInput& input) const {
    Forward(model, *ops, input);
    return ops->TakeStatus();
  }
  // Returns ResourceExhausted if the last step took more memory than there is. Its results are
  // void, and the next step may follow.
  absl::Status CheckMemory() const;
};

// Returns the memory of a node's ranks together, device.tensor_parallel_size of which are spread
// over `nodes`. Reads no weights: the model need not have any. UNIMPLEMENTED for what an op cannot
// do, and other errors of a load.
absl::StatusOr<MemoryPlan> PlanCpuMemory(const OpenedModel& model, const CpuSpec& device,
                                         const Kernels& kernels, int nodes = 1);

// Loads a model on a device of one rank and warms it up. Errors name the file or the setting.
absl::StatusOr<std::unique_ptr<CpuModel>> LoadCpuModel(const ModelSpec& model,
                                                       const CpuSpec& device,
                                                       const Kernels& kernels);

// The ranks of this process, of device.tensor_parallel_size in all.
struct LocalRanks {
  int first = 0;
  int count = 1;
  // They join these ranks with all others, in the order of the ranks; one rank by itself needs
  // none.
  std::vector<Collective*> collectives;
};

// Loads this process's ranks, each with its share of the threads and of the KV cache's memory, and
// does not run them. Ends the phases up to the warm-up.
absl::StatusOr<std::vector<std::unique_ptr<CpuModel>>> LoadCpuRanks(const ModelSpec& model,
                                                                    const CpuSpec& device,
                                                                    const Kernels& kernels,
                                                                    const LocalRanks& ranks,
                                                                    PhaseTimer& phases);

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_CPU_MODEL_H_
