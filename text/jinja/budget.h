// The cost limits of a template. A chat template comes with a model file and runs on clients'
// messages, so both may be hostile: everything that it can make grow is counted here.
#ifndef MILLRACE_TEXT_JINJA_BUDGET_H_
#define MILLRACE_TEXT_JINJA_BUDGET_H_

#include <atomic>
#include <cstddef>

#include "absl/status/status.h"
#include "base/clock.h"

namespace millrace {

struct TemplateLimits {
  // Bytes of the template itself.
  size_t max_source_bytes = 1 << 20;
  // Bytes of the rendered text, and of every string made on the way to it.
  size_t max_output_bytes = 4 << 20;
  // Work of one rendering: one step a node evaluated, an element visited, or 64 bytes of text read
  // or written. It stands for time (a million steps are some 0.1 s), and bounds memory too (64
  // bytes a step).
  size_t max_steps = 1'000'000;
  // Nesting of statements and expressions, and of lists and dicts.
  int max_depth = 100;
  // Nesting of what is being executed and evaluated, with the macros that call each other: it
  // bounds our stack.
  int max_call_depth = 1000;
};

namespace jinja {

// Counts down one rendering. Once exceeded, every later call fails too.
class Budget {
 public:
  // `cancelled` may be null.
  Budget(const TemplateLimits& limits, const Clock& clock, SteadyTime deadline,
         const std::atomic<bool>* cancelled = nullptr)
      : limits_(limits), clock_(clock), deadline_(deadline), cancelled_(cancelled) {}

  // Spends steps on work that is about to be done. InvalidArgument when the steps are spent (a
  // retry would not help), DeadlineExceeded when it is too late, Cancelled; the clock is read every
  // few thousand steps.
  absl::Status Spend(size_t steps);

  // Spends steps on a text of `bytes` that is about to be read or made. Also InvalidArgument when
  // no string may be that long.
  absl::Status SpendText(size_t bytes);

  const TemplateLimits& limits() const { return limits_; }

 private:
  static constexpr size_t kStepsPerClockRead = 4096;

  const TemplateLimits limits_;
  const Clock& clock_;
  const SteadyTime deadline_;
  const std::atomic<bool>* const cancelled_;
  size_t steps_ = 0;
  size_t next_clock_read_ = 1;
};

}  // namespace jinja
}  // namespace millrace

#endif  // MILLRACE_TEXT_JINJA_BUDGET_H_
