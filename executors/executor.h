// An executor runs a model, one step at a time, on one device or on several that act as one.
#ifndef MILLRACE_EXECUTORS_EXECUTOR_H_
#define MILLRACE_EXECUTORS_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/step_plan.h"

namespace millrace {

// Layers whose keys and values share one block table and one block size.
struct KvGroup {
  int32_t num_layers;
  int64_t bytes_per_block;  // keys and values of all of the group's layers
};

// How the executor has cut its KV arena. Today there is exactly one group.
struct KvLayout {
  int32_t block_size;  // tokens in a block
  int32_t num_blocks;
  std::string type;  // the element's type, as users name it: "float16"; of keys and of values where
                     // they differ
  std::vector<KvGroup> groups;
};

// A part of loading a model, and what it took.
struct LoadPhase {
  std::string name;
  double seconds;
};

// What a loaded model is, for those who plan and talk about it.
struct ModelInfo {
  std::string architecture;  // the family's name, "llama"
  std::string digest;        // SHA-256 of the weights, 32 raw bytes: equal exactly when they are
  int64_t weight_bytes;      // as placed on the device
  std::vector<int32_t> end_tokens;  // that end an answer beside the tokenizer's own
  // A sequence's numbers do not depend on what else runs, nor on how it was cut into steps.
  bool batch_invariant = true;
  StepLimits limits;
  KvLayout kv;
  // Of a GPU: batch sizes whose decode step is one CUDA graph, and those that could not be captured
  // and run in a larger one, or kernel by kernel.
  int32_t graphs = 0;
  int32_t graphs_failed = 0;
  std::vector<LoadPhase> load_phases;  // in their order; those that the executor tells apart
};

// Submit, Poll and Wait belong to one thread, the engine's. Workers are the executor's own.
//
// A row that goes wrong fails alone (RowResult::status). A device that goes wrong fails every step
// in flight with an Unavailable StepResult::status; Submit then refuses everything, and the process
// is meant to end: an executor does not come back.
//
// Destroying an executor with steps in flight waits for them.
class Executor {
 public:
  virtual ~Executor() = default;

  virtual const ModelInfo& info() const = 0;

  // `wake` is called from a worker each time a result becomes ready for Poll. It must not block and
  // must not call back into the executor. Set at most once, before the first Submit.
  virtual void OnResult(std::function<void()> wake) = 0;

  // Queues a step; returns at once. InvalidArgument: the plan breaks the contract (see
  // ValidatePlan) and nothing was done. ResourceExhausted: kMaxStepsInFlight are in flight.
  // Unavailable: the device has failed.
  virtual absl::Status Submit(StepPlan plan) = 0;

  // The bytes of memory that each kernel of a step must read and write at least, in their order, if
  // the step gives each of `rows` sequences one token and these have `positions` tokens together.
  // Empty: this executor's work is not that of kernels. Any thread's.
  virtual std::vector<int64_t> DecodeBytes(int32_t rows, int64_t positions) const {
    (void)rows, (void)positions;
    return {};
  }

  // The oldest finished step that was not handed out yet, if there is one.
  virtual std::optional<StepResult> Poll() = 0;

  // The same, but waits for it; nothing when no step is in flight.
  virtual std::optional<StepResult> Wait() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_EXECUTOR_H_
