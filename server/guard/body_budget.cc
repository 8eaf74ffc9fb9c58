#include "server/guard/body_budget.h"

#include <algorithm>
#include <limits>

namespace millrace {

void BodyBudget::Body::Release() {
  if (bytes_ == 0) return;
  const std::lock_guard lock(budget_.mutex_);
  budget_.Remove(*this);
}

uint64_t BodyBudget::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

void BodyBudget::Remove(Body& body) {
  used_ -= body.bytes_;
  body.bytes_ = 0;
  bodies_.erase(&body);
}

// A body's first second counts whole: a rate over a shorter time says little.
BodyBudget::Body* BodyBudget::Slowest(SteadyTime now) const {
  Body* slowest = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (Body* body : bodies_) {
    const double rate =
        static_cast<double>(body->bytes_) / (1 + std::max(0.0, ToSeconds(now - body->began_)));
    if (rate < least) {
      least = rate;
      slowest = body;
    }
  }
  return slowest;
}

bool BodyBudget::Charge(Body& body, uint64_t bytes, SteadyTime now) {
  const std::lock_guard lock(mutex_);
  if (body.evicted_) return false;
  if (bytes == 0) return true;
  if (body.bytes_ == 0) {
    body.began_ = now;
    bodies_.insert(&body);
  }
  body.bytes_ += bytes;
  used_ += bytes;
  while (used_ > limit_) {
    Body* const slowest = Slowest(now);
    slowest->evicted_ = true;
    Remove(*slowest);
    if (slowest == &body) return false;
  }
  return true;
}

}  // namespace millrace
