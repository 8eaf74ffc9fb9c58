// Steady time and its clock. Code that decides by time takes a `SteadyTime` as an argument; only
// the threads at the edge (the engine loop, sockets, timers) hold a `Clock`.
#ifndef MILLRACE_BASE_CLOCK_H_
#define MILLRACE_BASE_CLOCK_H_

#include <atomic>
#include <chrono>

namespace millrace {

using SteadyTime = std::chrono::steady_clock::time_point;  // monotonic, without calendar meaning
using Duration = std::chrono::steady_clock::duration;      // signed nanoseconds

inline double ToSeconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

class Clock {
 public:
  virtual ~Clock() = default;
  virtual SteadyTime Now() const = 0;

  // Returns the machine's clock, which is never destroyed.
  static const Clock& Real();
};

// A clock that stands still until a test advances it. Safe to read from any thread.
class ManualClock : public Clock {
 public:
  SteadyTime Now() const override { return SteadyTime(Duration(now_.load())); }
  void Advance(Duration by) { now_ += by.count(); }

 private:
  // Starts away from the epoch, where a forgotten, zero-initialized SteadyTime would look right.
  std::atomic<Duration::rep> now_{Duration(std::chrono::hours(1)).count()};
};

}  // namespace millrace

#endif  // MILLRACE_BASE_CLOCK_H_
