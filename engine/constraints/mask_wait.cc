#include "engine/constraints/mask_wait.h"

#include <algorithm>

namespace millrace {
namespace {

constexpr int kShare = 8;  // of a step's time that masks may take
constexpr Duration kMost = std::chrono::milliseconds(5);
constexpr Duration kAnyStep = std::chrono::milliseconds(1);  // the least time of a step that counts

}  // namespace

void MaskWait::OnSubmit(bool masked) { masked_.push_back(masked); }

void MaskWait::OnCommit(Duration took) {
  masked_.pop_front();
  step_time_ = took;
}

void MaskWait::OnOrder(SteadyTime now) {
  ++missing_;
  ordered_ = now;
}

bool MaskWait::HoldsUp(Duration took) const { return took > std::max(step_time_, kAnyStep); }

std::optional<SteadyTime> MaskWait::Until(SteadyTime now) const {
  if (std::find(masked_.begin(), masked_.end(), true) != masked_.end()) return SteadyTime::max();
  if (missing_ == 0) return std::nullopt;
  const SteadyTime end = ordered_ + std::min(step_time_ / kShare, kMost);
  return now < end ? std::optional(end) : std::nullopt;
}

}  // namespace millrace
