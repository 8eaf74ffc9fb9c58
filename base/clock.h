// Steady time, and the clock that gives it. Code that decides by time takes a `SteadyTime` as an
// argument; only the threads at the edge (the engine loop, sockets, timers) hold a `Clock`.
#ifndef MILLRACE_BASE_CLOCK_H_
#define MILLRACE_BASE_CLOCK_H_

#include <atomic>
#include <chrono>

namespace millrace {

using SteadyTime = std::chrono::steady_clock::time_point;  // never jumps; no calendar meaning
using Duration = std::chrono::steady_clock::duration;      // signed, nanoseconds

inline double ToSeconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

class Clock {
 public:
  virtual ~Clock() = default;
  virtual SteadyTime Now() const = 0;

  // The machine's clock; lives for ever.
  static const Clock& Real();
};

// Stands still until a test moves it. Safe to read from any thread.
class ManualClock : public Clock {
 public:
  SteadyTime Now() const override { return SteadyTime(Duration(now_.load())); }
  void Advance(Duration by) { now_ += by.count(); }

 private:
  // Not at the epoch: there a forgotten, zero-initialized SteadyTime would look right.
  std::atomic<Duration::rep> now_{Duration(std::chrono::hours(1)).count()};
};

}  // namespace millrace

#endif  // MILLRACE_BASE_CLOCK_H_
