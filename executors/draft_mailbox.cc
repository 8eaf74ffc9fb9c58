#include "executors/draft_mailbox.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace millrace {
void DraftMailbox::Put(std::vector<LateDraft> drafts) {
  const std::lock_guard lock(mutex_);
  std::move(drafts.begin(), drafts.end(), std::back_inserter(drafts_));
  came_.notify_all();
}

void DraftMailbox::FillAll(StepPlan& plan) {
  const auto waiting = std::count_if(plan.rows.begin(), plan.rows.end(), [](const StepRow& row) {
    return row.sampled_by.has_value() && row.num_draft > 0;
  });
  if (waiting == 0) return;
  const auto is_of_plan = [&plan](const LateDraft& draft) { return draft.step == plan.id; };
  std::unique_lock lock(mutex_);
  came_.wait(lock,
             [&] { return std::count_if(drafts_.begin(), drafts_.end(), is_of_plan) == waiting; });
  for (const LateDraft& draft : drafts_) {
    if (is_of_plan(draft)) SetDraft(draft, plan);
  }
  // Those of a step that failed before they came go with the next that waits.
  std::erase_if(drafts_, [&plan](const LateDraft& draft) { return draft.step <= plan.id; });
}

}  // namespace millrace
