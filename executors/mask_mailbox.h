// Carries late masks from Executor::SetMasks to the thread that runs the steps.
#ifndef MILLRACE_EXECUTORS_MASK_MAILBOX_H_
#define MILLRACE_EXECUTORS_MASK_MAILBOX_H_

#include <condition_variable>
#include <mutex>
#include <vector>

#include "plan/step_plan.h"

namespace millrace {

// Put is called by the thread that submits steps, the other functions by the one that runs them.
// Masks must have passed PlanChecker::CheckMasks, and plans are filled in the order of their ids.
class MaskMailbox {
 public:
  void Put(std::vector<LateMask> masks);

  // Moves the masks that have come for the plan's late ones into it. Returns whether none is
  // missing.
  bool Fill(StepPlan& plan);

  // Waits until none of the plan's is missing.
  void FillAll(StepPlan& plan);

 private:
  bool FillLocked(StepPlan& plan);

  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<LateMask> masks_;  // guarded by mutex_
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MASK_MAILBOX_H_
