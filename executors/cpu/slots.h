// What the worker knows of each sequence between steps, and how a plan becomes a step's input and
// its result.
#ifndef MILLRACE_EXECUTORS_CPU_SLOTS_H_
#define MILLRACE_EXECUTORS_CPU_SLOTS_H_

#include <memory>
#include <vector>

#include "executors/cpu/step_input.h"
#include "executors/slot_results.h"
#include "scheduler/step_plan.h"

namespace millrace::cpu {

// Plans have passed a PlanChecker. Belongs to the worker's thread.
class Slots {
 public:
  explicit Slots(const StepLimits& limits);

  // Starts slots, appends blocks and fills `input`, whose memory is reused.
  void Begin(const StepPlan& plan, CpuStepInput* input);

  // `sampled`: of the input's samples. Keeps the tokens that later rows begin with.
  StepResult End(const StepPlan& plan, absl::Span<const Sampled> sampled);

 private:
  struct Slot {
    std::shared_ptr<const SamplingParams> sampling;
    TokenCounts counts;  // kept where `sampling` penalizes
    std::vector<BlockId> block_table;
    Token last_token = 0;
  };
  std::vector<Slot> slots_;
  SlotResults results_;
};

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_SLOTS_H_
