#include "executors/rank_group.h"

#include <utility>

namespace millrace {

bool RankGroup::Barrier(int rank) {
  arrivals_[rank].value.fetch_add(1, std::memory_order_relaxed);
  // Read before this rank arrives, since the last one to do so changes it.
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  if (aborted_.load(std::memory_order_acquire)) return false;
  if (here_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
    here_.store(0, std::memory_order_relaxed);
    NextPhase();
  } else {
    AwaitPhaseAfter(phase);
  }
  return !aborted_.load(std::memory_order_acquire);
}

void RankGroup::Abort(absl::Status why) {
  {
    std::lock_guard lock(mutex_);
    if (!why_.ok()) return;
    why_ = std::move(why);
  }
  aborted_.store(true, std::memory_order_release);
  NextPhase();
}

void RankGroup::NextPhase() {
  {
    std::lock_guard lock(mutex_);
    phase_.fetch_add(1, std::memory_order_release);
  }
  changed_.notify_all();
}

// Sleeps instead of calling std::atomic::wait, which yields first: on a busy machine that costs
// whole time slices of other processes.
void RankGroup::AwaitPhaseAfter(uint32_t phase) {
  const auto over = [&] { return phase_.load(std::memory_order_acquire) != phase; };
  for (int i = 0; i < looks_; ++i) {
    if (over()) return;
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, over);
}

absl::Status RankGroup::status() const {
  std::lock_guard lock(mutex_);
  return why_;
}

}  // namespace millrace
