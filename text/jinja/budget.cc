#include "text/jinja/budget.h"

#include "base/status.h"
#include "base/strings.h"

namespace millrace::jinja {

absl::Status Budget::Spend(size_t steps) {
  if (steps > limits_.max_steps - steps_) {
    steps_ = limits_.max_steps;
    return absl::InvalidArgumentError(
        StrCat("rendering needs more than ", limits_.max_steps, " steps"));
  }
  steps_ += steps;
  if (steps_ >= next_clock_read_) {
    next_clock_read_ = steps_ + kStepsPerClockRead;
    if (cancelled_ != nullptr && *cancelled_) {
      return absl::CancelledError("rendering was cancelled");
    }
    if (clock_.Now() >= deadline_) {
      return absl::DeadlineExceededError("rendering took longer than the request may wait");
    }
  }
  return absl::OkStatus();
}

absl::Status Budget::SpendText(size_t bytes) {
  if (bytes > limits_.max_output_bytes) {
    return absl::InvalidArgumentError(
        StrCat("a text of more than ", limits_.max_output_bytes, " bytes"));
  }
  return Spend(1 + bytes / 64);
}

}  // namespace millrace::jinja
