// Shows on the terminal how a run goes.
#ifndef MILLRACE_LOADTEST_PROGRESS_H_
#define MILLRACE_LOADTEST_PROGRESS_H_

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "loadtest/driver.h"

namespace millrace {

// Sums of what all threads have counted.
struct ProgressTotals {
  int64_t sent = 0;
  int64_t completed = 0;
  int64_t failed = 0;
  int64_t running = 0;
  int64_t events = 0;
  int64_t tokens = 0;
  int64_t first_tokens = 0;
  int64_t ttft_us = 0;

  static ProgressTotals Of(const std::deque<ThreadProgress>& threads);
};

// Returns a line on the time between two looks, `seconds` apart.
std::string ProgressLine(double now, double seconds, const ProgressTotals& before,
                         const ProgressTotals& after);

// Writes to stderr until it is destroyed: on a terminal a line that changes twice a second, else a
// line every ten seconds.
class ProgressDisplay {
 public:
  explicit ProgressDisplay(const std::deque<ThreadProgress>& threads);
  ~ProgressDisplay();

 private:
  void Loop();

  const std::deque<ThreadProgress>& threads_;
  const bool is_terminal_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_ended_ = false;
  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_PROGRESS_H_
