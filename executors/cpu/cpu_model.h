// A model in the CPU's memory, ready to run steps.
#ifndef MILLRACE_EXECUTORS_CPU_CPU_MODEL_H_
#define MILLRACE_EXECUTORS_CPU_CPU_MODEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/cpu/cpu_ops.h"
#include "executors/executor.h"
#include "executors/factory.h"
#include "executors/models/any_model.h"

namespace millrace::cpu {

// Pinned in memory: the parts point to one another.
struct CpuModel {
  std::unique_ptr<ThreadPool> pool;
  CpuWeights weights;
  KvArena kv;
  AnyModel model;
  std::unique_ptr<CpuOps> ops;
  ModelInfo info;

  // One step.
  void Run(const StepInput& input) const {
    ops->BeginStep();
    Forward(model, *ops, input);
  }
};

// Errors name the file or the setting.
absl::StatusOr<std::unique_ptr<CpuModel>> LoadCpuModel(const ModelSpec& model,
                                                       const DeviceSpec& device,
                                                       const Kernels& kernels);

// Cores that this process may use.
int UsableCores();

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_CPU_MODEL_H_
