// The thread that runs an executor's steps, and the two mailboxes that it stands between.
#ifndef MILLRACE_EXECUTORS_STEP_WORKER_H_
#define MILLRACE_EXECUTORS_STEP_WORKER_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "scheduler/step_plan.h"

namespace millrace {

// Implements what Executor says of Submit, Poll, Wait and OnResult, given a function that runs a
// step. A result whose status is an error is a device's end: steps that wait fail with it, and no
// more are taken.
class StepWorker {
 public:
  // `run` is called on the worker's thread, a step at a time, in order.
  explicit StepWorker(std::function<StepResult(const StepPlan&)> run);
  ~StepWorker();  // runs what is in flight

  void OnResult(std::function<void()> wake);
  // What Submit would refuse whatever the plan says: OK, ResourceExhausted or Unavailable. One that
  // was OK stays so until the next Submit, but for a device that fails.
  absl::Status Ready() const;
  absl::Status Submit(StepPlan plan);
  std::optional<StepResult> Poll();
  std::optional<StepResult> Wait();

 private:
  absl::Status ReadyLocked() const;
  std::optional<StepResult> TakeLocked();
  void Work();

  const std::function<StepResult(const StepPlan&)> run_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::function<void()> wake_;
  std::deque<StepPlan> plans_;
  std::deque<StepResult> results_;
  int in_flight_ = 0;  // submitted and not handed out
  absl::Status failure_;
  bool stopping_ = false;

  std::thread thread_;  // last: it uses what is above
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_STEP_WORKER_H_
