// Drafts on their way from the engine's thread to an executor's.
#ifndef MILLRACE_EXECUTORS_DRAFT_MAILBOX_H_
#define MILLRACE_EXECUTORS_DRAFT_MAILBOX_H_

#include <condition_variable>
#include <mutex>
#include <vector>

#include "plan/step_plan.h"

namespace millrace {

// Drafts that rows of submitted steps wait for. All of them must come: what ends a sequence sends
// an empty one.
class DraftMailbox {
 public:
  // Takes drafts that a PlanChecker let pass.
  void Put(std::vector<LateDraft> drafts);

  // Waits for the drafts of the plan's rows, and puts them into it by SetDraft.
  void FillAll(StepPlan& plan);

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<LateDraft> drafts_;  // guarded by mutex_
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_DRAFT_MAILBOX_H_
