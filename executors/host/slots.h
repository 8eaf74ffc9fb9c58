// The worker's state of each sequence between steps, and the conversion of a plan to a step's input
// and of samples to its result.
#ifndef MILLRACE_EXECUTORS_HOST_SLOTS_H_
#define MILLRACE_EXECUTORS_HOST_SLOTS_H_

#include <memory>
#include <vector>

#include "executors/host/step_input.h"
#include "executors/slot_results.h"
#include "scheduler/step_plan.h"

namespace millrace {

// Plans must have passed a PlanChecker. Used by the worker's thread.
class Slots {
 public:
  explicit Slots(const StepLimits& limits);

  // Starts slots, appends blocks and fills `input`, whose memory is reused.
  void Begin(const StepPlan& plan, CpuStepInput* input);

  // Makes the step's result. `sampled` are the outcomes of the input's samples. Stores the tokens
  // that later rows begin with.
  StepResult End(const StepPlan& plan, absl::Span<const Sampled> sampled);

 private:
  struct Slot {
    std::shared_ptr<const SamplingParams> sampling;
    TokenCounts counts;  // maintained if `sampling` penalizes
    std::vector<BlockId> block_table;
    Token last_token = 0;
  };
  std::vector<Slot> slots_;
  SlotResults results_;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_HOST_SLOTS_H_
