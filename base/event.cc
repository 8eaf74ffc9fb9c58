#include "base/event.h"

#include <utility>

namespace millrace {

void Event::Raise() {
  // Notified under the lock: the waiter may destroy the event as soon as it wakes.
  std::lock_guard lock(mutex_);
  if (std::exchange(raised_, true)) return;
  raised_changed_.notify_one();
}

bool Event::Wait(std::optional<SteadyTime> deadline) {
  std::unique_lock lock(mutex_);
  const auto raised = [this] { return raised_; };
  if (deadline.has_value()) {
    raised_changed_.wait_until(lock, *deadline, raised);
  } else {
    raised_changed_.wait(lock, raised);
  }
  return std::exchange(raised_, false);
}

}  // namespace millrace
