// One thread sleeps, many may wake it.
#ifndef MILLRACE_BASE_EVENT_H_
#define MILLRACE_BASE_EVENT_H_

#include <condition_variable>
#include <mutex>
#include <optional>

#include "base/clock.h"

namespace millrace {

// A flag that several sources raise and one thread waits for. A Raise that comes before the Wait is
// not lost; several before it are one. What was written before Raise is visible after the Wait that
// it ended.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // From any thread; never blocks for long.
  void Raise();

  // Sleeps until raised, or until the deadline if there is one; lowers the flag. False: the
  // deadline came first.
  bool Wait(std::optional<SteadyTime> deadline = std::nullopt);

 private:
  std::mutex mutex_;
  std::condition_variable raised_changed_;
  bool raised_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_BASE_EVENT_H_
