#include "loadtest/progress.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "absl/strings/str_format.h"

namespace millrace {

ProgressTotals ProgressTotals::Of(const std::deque<ThreadProgress>& threads) {
  ProgressTotals totals;
  for (const ThreadProgress& thread : threads) {
    totals.sent += thread.sent.load(std::memory_order_relaxed);
    totals.completed += thread.completed.load(std::memory_order_relaxed);
    totals.failed += thread.failed.load(std::memory_order_relaxed);
    totals.running += thread.running.load(std::memory_order_relaxed);
    totals.events += thread.events.load(std::memory_order_relaxed);
    totals.tokens += thread.tokens.load(std::memory_order_relaxed);
    totals.first_tokens += thread.first_tokens.load(std::memory_order_relaxed);
    totals.ttft_us += thread.ttft_us.load(std::memory_order_relaxed);
  }
  return totals;
}

std::string ProgressLine(double now, double seconds, const ProgressTotals& before,
                         const ProgressTotals& after) {
  const auto firsts = static_cast<double>(after.first_tokens - before.first_tokens);
  std::string ttft = "-";
  if (firsts > 0) {
    ttft = absl::StrFormat("%.1f ms",
                           static_cast<double>(after.ttft_us - before.ttft_us) / firsts / 1e3);
  }
  return absl::StrFormat(
      "%5.0f s  running %d  done %d  failed %d  %.1f req/s  %.0f tok/s  mean TTFT %s", now,
      after.running, after.completed, after.failed,
      static_cast<double>(after.completed - before.completed) / seconds,
      static_cast<double>(after.tokens - before.tokens) / seconds, ttft);
}

ProgressDisplay::ProgressDisplay(const std::deque<ThreadProgress>& threads)
    : threads_(threads), is_terminal_(isatty(STDERR_FILENO) == 1), thread_([this] { Loop(); }) {}

ProgressDisplay::~ProgressDisplay() {
  {
    const std::lock_guard lock(mutex_);
    is_ended_ = true;
  }
  ended_.notify_one();
  thread_.join();
  if (is_terminal_) std::fputs("\r\033[K", stderr);
}

void ProgressDisplay::Loop() {
  using Clock = std::chrono::steady_clock;
  const auto period = std::chrono::milliseconds(is_terminal_ ? 500 : 10'000);
  const Clock::time_point start = Clock::now();
  Clock::time_point last = start;
  ProgressTotals before;
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, period, [this] { return is_ended_; })) {
    const Clock::time_point now = Clock::now();
    const ProgressTotals after = ProgressTotals::Of(threads_);
    const std::string line =
        ProgressLine(std::chrono::duration<double>(now - start).count(),
                     std::chrono::duration<double>(now - last).count(), before, after);
    std::fprintf(stderr, is_terminal_ ? "\r\033[K%s" : "%s\n", line.c_str());
    std::fflush(stderr);
    before = after;
    last = now;
  }
}

}  // namespace millrace
