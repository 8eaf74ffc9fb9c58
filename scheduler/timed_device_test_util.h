// For tests: a scheduler on a device whose steps take the time of a formula, on a clock of its own.
#ifndef MILLRACE_SCHEDULER_TIMED_DEVICE_TEST_UTIL_H_
#define MILLRACE_SCHEDULER_TIMED_DEVICE_TEST_UTIL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "scheduler/cost_model.h"
#include "scheduler/scheduler.h"

namespace millrace {

// Plans a step while another runs, as the engine does, and notes what every step had and took.
class TimedDevice {
 public:
  using Formula = std::function<double(const StepWork& work)>;  // milliseconds

  struct Step {
    StepWork work;
    double milliseconds;
    bool could_begin;      // sequences wait, and a slot is free, after it was planned
    int64_t ready_prompt;  // prompt tokens that the sequences with a slot lacked before it
  };
  struct Life {
    uint32_t tenant;
    SteadyTime added;
    size_t steps_before = 0;  // planned before it was added
    int32_t prompt_tokens;
    int32_t max_tokens;
    int32_t planned = 0;  // positions
    int32_t generated = 0;
    std::optional<size_t> first_step;  // the last in which it took a slot
    std::optional<SteadyTime> first_token;
    std::optional<SteadyTime> ended;
  };

  TimedDevice(const SchedulerOptions& options, Formula formula);

  SequenceId Add(int32_t prompt_tokens, int32_t max_tokens, TenantShare tenant = {},
                 int32_t priority = 0);
  // Runs one step to its end. Returns whether there was one.
  bool RunStep();
  void RunUntilIdle() {
    while (RunStep()) {
    }
  }

  // Runs `before` steps, and then teaches the device's costs: `prompts` prompts of `least` tokens
  // and `more` more each, one after the other, each with four steps.
  void Learn(int before, int prompts, int32_t least, int32_t more);
  // Runs steps until a prompt of so many tokens, which is added, has its one token. Returns the
  // steps that it took, with one that ran already.
  std::vector<Step> RunPrompt(int32_t prompt_tokens);

  const std::vector<Step>& steps() const { return steps_; }
  const Life& life(SequenceId id) const { return lives_.at(id); }
  SteadyTime now() const { return now_; }
  // Returns the tokens that committed steps have computed for a tenant, each position once.
  int64_t served(uint32_t tenant) const;
  const Scheduler& scheduler() const { return *scheduler_; }

 private:
  struct InFlight {
    StepResult result;
    double milliseconds;
  };

  void Plan();
  void Submit(const StepPlan& plan);

  const std::unique_ptr<Scheduler> scheduler_;
  const int32_t num_slots_;
  const StateLayout state_;
  const Formula formula_;
  SteadyTime now_ = SteadyTime(std::chrono::hours(1));
  SequenceId next_id_ = 1;
  std::map<SequenceId, Life> lives_;
  std::map<uint32_t, int64_t> served_;
  std::map<SlotId, SequenceId> of_slot_;
  std::deque<InFlight> in_flight_;
  std::vector<Step> steps_;
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_TIMED_DEVICE_TEST_UTIL_H_
