// The thread that runs an executor's steps, and the two mailboxes that it stands between.
#ifndef MILLRACE_EXECUTORS_STEP_WORKER_H_
#define MILLRACE_EXECUTORS_STEP_WORKER_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "scheduler/step_plan.h"

namespace millrace {

// Runs steps, in order, for a StepWorker, on its thread.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // Begins a step, on a device that runs by itself; or only notes it. Earlier ones may be running.
  virtual void Start(StepPlan plan) = 0;
  // Whether Finish would return without waiting for a device.
  virtual bool Done() = 0;
  // The result of the oldest step that was started.
  virtual StepResult Finish() = 0;
};

// For a device that is this process's own threads: a step runs in Finish.
class SerialStepRunner : public StepRunner {
 public:
  explicit SerialStepRunner(std::function<StepResult(const StepPlan&)> run)
      : run_(std::move(run)) {}

  void Start(StepPlan plan) override { plans_.push_back(std::move(plan)); }
  bool Done() override { return true; }
  StepResult Finish() override {
    const StepPlan plan = std::move(plans_.front());
    plans_.pop_front();
    return run_(plan);
  }

 private:
  const std::function<StepResult(const StepPlan&)> run_;
  std::deque<StepPlan> plans_;
};

// Implements what Executor says of Submit, Poll, Wait and OnResult, given a StepRunner. A result
// whose status is an error is a device's end: steps that wait or run fail with it, and no more are
// taken.
class StepWorker {
 public:
  explicit StepWorker(StepRunner& runner);  // the runner outlives this
  ~StepWorker();                            // finishes what is in flight

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
  void StartNext(std::unique_lock<std::mutex>& lock);
  void FinishOldest(std::unique_lock<std::mutex>& lock);

  StepRunner& runner_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::function<void()> wake_;
  std::deque<StepPlan> plans_;  // not started
  std::deque<StepId> running_;  // started and not finished
  std::deque<StepResult> results_;
  int in_flight_ = 0;  // submitted and not handed out
  absl::Status failure_;
  bool stopping_ = false;

  std::thread thread_;  // last: it uses what is above
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_STEP_WORKER_H_
