// Measures the phases of loading a model, for ModelInfo::load_phases.
#ifndef MILLRACE_EXECUTORS_PHASE_TIMER_H_
#define MILLRACE_EXECUTORS_PHASE_TIMER_H_

#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "executors/executor.h"

namespace millrace {

class PhaseTimer {
 public:
  // Ends a phase, which began at the last call or at the timer's construction.
  void End(std::string name) {
    const SteadyTime now = Clock::Real().Now();
    phases_.push_back({std::move(name), ToSeconds(now - begin_)});
    begin_ = now;
  }

  std::vector<LoadPhase> Take() { return std::move(phases_); }

 private:
  SteadyTime begin_ = Clock::Real().Now();
  std::vector<LoadPhase> phases_;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_PHASE_TIMER_H_
