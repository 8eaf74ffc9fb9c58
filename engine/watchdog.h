// Looks after an engine from a thread of its own: a device that has stalled, readers that take
// nothing, and requests that wait for the text pool in vain.
#ifndef MILLRACE_ENGINE_WATCHDOG_H_
#define MILLRACE_ENGINE_WATCHDOG_H_

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "engine/engine_parts.h"

namespace millrace {

class Watchdog {
 public:
  // `parts` outlives this.
  explicit Watchdog(EngineParts* parts);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();

  // Returns whether there is work and no step has finished for EngineOptions::stall_timeout.
  bool stalled() const { return stalled_; }

 private:
  void Run();
  void CheckStall(SteadyTime now);
  void CancelSlowReaders(SteadyTime now);

  EngineParts& parts_;
  std::atomic<bool> stalled_ = false;
  // When this thread last came far too late: the process was stopped, or the machine slept, and
  // that time was no device's and no reader's. Its own thread's alone.
  SteadyTime resumed_ = SteadyTime::min();

  std::mutex mutex_;
  std::condition_variable ends_changed_;
  bool ends_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_WATCHDOG_H_
