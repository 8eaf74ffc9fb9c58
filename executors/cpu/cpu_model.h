// A model in the CPU's memory, ready to run steps.
#ifndef MILLRACE_EXECUTORS_CPU_CPU_MODEL_H_
#define MILLRACE_EXECUTORS_CPU_CPU_MODEL_H_

#include <cstring>
#include <memory>

#include "absl/status/statusor.h"
#include "executors/cpu/cpu_ops.h"
#include "executors/device_spec.h"
#include "executors/executor.h"
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

  void Copy(const BlockCopy& copy) const {
    std::memcpy(kv.Page(copy.dst, 0, 0), kv.Page(copy.src, 0, 0), kv.block_bytes);
  }

  // Runs one step.
  void Run(const StepInput& input) const { Forward(model, *ops, input); }
};

// Errors name the file or the setting. A rank of several loads its share, and `collective` joins it
// with the others, which load at the same time.
absl::StatusOr<std::unique_ptr<CpuModel>> LoadCpuModel(const ModelSpec& model,
                                                       const CpuSpec& device,
                                                       const Kernels& kernels, RankSpec rank = {},
                                                       Collective* collective = nullptr);

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_CPU_MODEL_H_
