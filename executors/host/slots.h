// The worker's state of each sequence between steps, and the conversion of a plan to a step's input
// and of samples to its result.
#ifndef MILLRACE_EXECUTORS_HOST_SLOTS_H_
#define MILLRACE_EXECUTORS_HOST_SLOTS_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "executors/host/step_input.h"
#include "executors/slot_results.h"
#include "plan/step_plan.h"

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

  // Returns how many tokens of its draft each row of the last End's plan has accepted.
  absl::Span<const int32_t> accepted() const { return accepted_; }

  // Makes the result of a step that could not be computed: all of its rows fail by `why`, and so do
  // later rows of their slots, which begin with any token.
  StepResult Fail(const StepPlan& plan, const absl::Status& why) {
    return results_.Fail(plan, why);
  }

 private:
  struct Slot {
    std::shared_ptr<const SamplingParams> sampling;
    TokenCounts counts;                              // maintained if `sampling` penalizes
    std::vector<std::vector<BlockId>> block_tables;  // by group
    Token last_token = 0;
    int32_t end = 0;  // positions with the tokens before last_token
  };
  // Appends a row's blocks to its slot's tables.
  void Append(const StepPlan& plan, const StepRow& row, Slot& slot) const;

  const StateLayout state_;
  std::vector<Slot> slots_;
  std::vector<int32_t> accepted_;
  SlotResults results_;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_HOST_SLOTS_H_
