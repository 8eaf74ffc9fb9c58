#ifndef MILLRACE_BASE_THREAD_CLOCK_H_
#define MILLRACE_BASE_THREAD_CLOCK_H_

#include <time.h>

#include <chrono>

namespace millrace {

// The time that the calling thread ran on a processor (a Clock of the standard library; values of
// different threads do not compare). A budget in it allows the same work on a busy machine as on
// an idle one, where one in steady time would run out while other threads run.
struct ThreadClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<ThreadClock>;
  static constexpr bool is_steady = true;

  static time_point now() noexcept {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return time_point(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
  }
};

}  // namespace millrace

#endif  // MILLRACE_BASE_THREAD_CLOCK_H_
