// The executor of models that this process's own threads run, whatever library computes for them.
#ifndef MILLRACE_EXECUTORS_CPU_HOST_EXECUTOR_H_
#define MILLRACE_EXECUTORS_CPU_HOST_EXECUTOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "executors/cpu/step_input.h"
#include "executors/executor.h"
#include "executors/slot_results.h"

namespace millrace::cpu {

// A loaded model. After its construction it belongs to one thread, the executor's worker.
class HostModel {
 public:
  virtual ~HostModel() = default;

  virtual const ModelInfo& info() const = 0;

  // A whole block, of all layers.
  virtual void Copy(const BlockCopy& copy) = 0;

  // Runs a step of at least one token. What came of input.samples, in their order, and perhaps more
  // after them; valid until the next call. An error ends the executor, as a device's does.
  virtual absl::StatusOr<absl::Span<const Sampled>> Run(const CpuStepInput& input) = 0;

  // Of an encoder, what came of the rows of the last Run: [rows, info().limits.embedding_size].
  virtual absl::Span<const float> embeddings() const { return {}; }
};

std::unique_ptr<Executor> MakeHostExecutor(std::unique_ptr<HostModel> model);

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_HOST_EXECUTOR_H_
