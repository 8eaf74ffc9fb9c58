// An event on which one thread waits and which many threads may raise.
#ifndef MILLRACE_BASE_EVENT_H_
#define MILLRACE_BASE_EVENT_H_

#include <condition_variable>
#include <mutex>
#include <optional>

#include "base/clock.h"

namespace millrace {

// A flag that several sources raise and one thread waits for. A Raise before the Wait is not lost,
// and several count as one. Writes before a Raise are visible after the Wait that it ends.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Raises the flag. May be called from any thread; never blocks for long.
  void Raise();

  // Waits until the flag is raised or the deadline, if any, has passed, and lowers the flag.
  // Returns false if the deadline came first.
  bool Wait(std::optional<SteadyTime> deadline = std::nullopt);

 private:
  std::mutex mutex_;
  std::condition_variable raised_changed_;
  bool raised_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_BASE_EVENT_H_
