// Whether a plan continues what earlier plans began: the half of the contract that ValidatePlan
// cannot see.
#ifndef MILLRACE_EXECUTORS_PLAN_CHECKER_H_
#define MILLRACE_EXECUTORS_PLAN_CHECKER_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/step_plan.h"

namespace millrace {

// What every executor asks before it takes a plan. Belongs to the thread that submits.
class PlanChecker {
 public:
  explicit PlanChecker(const StepLimits& limits) : limits_(limits), slots_(limits.max_num_seqs) {}

  // ValidatePlan; and: ids ascend, a row's slot was started, a row begins where its slot's last one
  // ended (a fresh slot's anywhere, at the end of the cached prefix that it names), each of its
  // positions has a block, and sampled_by is the last step that sampled for the slot.
  // InvalidArgument, naming row and field, otherwise; then nothing is noted. Linear in the size of
  // the plan.
  absl::Status Check(const StepPlan& plan);

 private:
  struct Slot {
    bool started = false;
    std::optional<int32_t> next_position;  // after its first row
    int32_t num_blocks = 0;
    std::optional<StepId> last_sampled;
  };
  absl::Status CheckRow(const StepPlan& plan, size_t i, const Slot& slot) const;

  StepLimits limits_;
  std::vector<Slot> slots_;
  StepId last_id_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_PLAN_CHECKER_H_
