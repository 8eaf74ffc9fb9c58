#include "executors/mask_mailbox.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace millrace {

void MaskMailbox::Put(std::vector<LateMask> masks) {
  const std::lock_guard lock(mutex_);
  std::move(masks.begin(), masks.end(), std::back_inserter(masks_));
  came_.notify_all();
}

bool MaskMailbox::Fill(StepPlan& plan) {
  const std::lock_guard lock(mutex_);
  return FillLocked(plan);
}

void MaskMailbox::FillAll(StepPlan& plan) {
  std::unique_lock lock(mutex_);
  came_.wait(lock, [&] { return FillLocked(plan); });
}

// A step that failed may have ended before its masks came: those go when a later plan is filled.
bool MaskMailbox::FillLocked(StepPlan& plan) {
  std::erase_if(masks_, [&plan](LateMask& late) {
    if (late.step == plan.id) plan.logits[late.logits].mask = std::move(late.mask);
    return late.step <= plan.id;
  });
  return std::none_of(plan.logits.begin(), plan.logits.end(), [](const WantedLogits& wanted) {
    return wanted.late_mask && wanted.mask == nullptr;
  });
}

}  // namespace millrace
