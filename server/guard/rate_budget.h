// A budget of events that refills with time.
#ifndef MILLRACE_SERVER_GUARD_RATE_BUDGET_H_
#define MILLRACE_SERVER_GUARD_RATE_BUDGET_H_

#include <algorithm>
#include <mutex>

#include "base/clock.h"
#include "server/guard/limits.h"

namespace millrace {

// Used by one thread at a time.
class RateBudget {
 public:
  explicit RateBudget(const RateLimit& limit) : limit_(limit), left_(limit.burst) {}

  // Takes one event from the budget. Returns false, and takes nothing, if none is left.
  bool Spend(SteadyTime now) {
    if (left_ < 1) Refill(now);
    if (left_ < 1) return false;
    left_ -= 1;
    return true;
  }

  // Gives `events` back, up to the burst.
  void Earn(double events) { left_ = std::min(left_ + events, limit_.burst); }

 private:
  void Refill(SteadyTime now) {
    if (last_ != SteadyTime()) Earn(ToSeconds(now - last_) * limit_.per_second);
    last_ = now;
  }

  RateLimit limit_;
  double left_;
  SteadyTime last_;  // of the last refill: the first comes when the burst is spent
};

// The same for several threads.
class SharedRateBudget {
 public:
  explicit SharedRateBudget(const RateLimit& limit) : budget_(limit) {}

  bool Spend(SteadyTime now) {
    const std::lock_guard lock(mutex_);
    return budget_.Spend(now);
  }

 private:
  std::mutex mutex_;
  RateBudget budget_;  // guarded by mutex_
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GUARD_RATE_BUDGET_H_
