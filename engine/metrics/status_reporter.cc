#include "engine/metrics/status_reporter.h"

#include <algorithm>
#include <utility>

namespace millrace {

void StatusReporter::OnSubmit(SteadyTime now, int64_t tokens, size_t sequences) {
  in_flight_.push_back({now, tokens, static_cast<int32_t>(sequences)});
}

StepFigures StatusReporter::OnCommit(SteadyTime now) {
  const Submitted step = in_flight_.front();
  in_flight_.pop_front();
  SteadyTime begin = step.at;
  if (num_steps_ > 0) begin = std::max(begin, steps_[(num_steps_ - 1) % steps_.size()].ended);
  steps_[num_steps_++ % steps_.size()] = {now, now - begin, step.tokens, step.sequences};
  return {.tokens = step.tokens, .sequences = step.sequences, .took = now - begin};
}

void StatusReporter::Answer(const std::function<EngineStatus()>& make) {
  const std::deque<std::function<void(EngineStatus)>> asked = asked_.TakeAll();
  if (asked.empty()) return;
  EngineStatus status = make();
  const uint64_t kept = std::min<uint64_t>(num_steps_, steps_.size());
  for (uint64_t i = num_steps_ - kept; i < num_steps_; ++i) {
    status.steps.push_back(steps_[i % steps_.size()]);
  }
  for (const std::function<void(EngineStatus)>& done : asked) done(status);
}

}  // namespace millrace
