// The thread that runs an executor's steps, with its queues of plans and results.
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
#include "plan/step_plan.h"

namespace millrace {

// Runs steps in order for a StepWorker, on its thread.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // Starts a step, on a device that runs asynchronously, or only records it. Earlier steps may
  // still be running.
  virtual void Start(StepPlan plan) = 0;
  // Returns whether the oldest step has finished, so that Finish would not block.
  virtual bool Done() = 0;
  // Waits for the oldest started step and returns its result.
  virtual StepResult Finish() = 0;
};

// A runner for models that run on this process's threads: a step runs in Finish.
class SerialStepRunner : public StepRunner {
 public:
  explicit SerialStepRunner(std::function<StepResult(StepPlan)> run) : run_(std::move(run)) {}

  void Start(StepPlan plan) override { plans_.push_back(std::move(plan)); }
  bool Done() override { return true; }
  StepResult Finish() override {
    StepPlan plan = std::move(plans_.front());
    plans_.pop_front();
    return run_(std::move(plan));
  }

 private:
  const std::function<StepResult(StepPlan)> run_;
  std::deque<StepPlan> plans_;
};

// Implements Executor's Submit, Poll, Wait and OnResult on top of a StepRunner. A result with an
// error status means that the device has failed: queued and running steps fail with it, and no more
// are accepted.
class StepWorker {
 public:
  explicit StepWorker(StepRunner& runner);  // `runner` must outlive this
  ~StepWorker();                            // finishes the steps in flight

  void OnResult(std::function<void()> wake);
  // Returns the status that Submit would return for any valid plan: OK, ResourceExhausted or
  // Unavailable. OK stays valid until the next Submit, unless the device fails.
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
  int in_flight_ = 0;  // submitted and not yet returned
  absl::Status failure_;
  bool stopping_ = false;

  std::thread thread_;  // last, since it uses the members above
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_STEP_WORKER_H_
