#include "executors/step_worker.h"

#include <sys/prctl.h>

#include <chrono>
#include <utility>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

// Polling interval of a device that runs a step. Its queue already holds the next step by then, so
// noticing a result this late delays only the result's readers.
constexpr auto kLook = std::chrono::microseconds(20);

}  // namespace

StepWorker::StepWorker(StepRunner& runner) : runner_(runner), thread_([this] { Work(); }) {}

StepWorker::~StepWorker() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void StepWorker::OnResult(std::function<void()> wake) {
  std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

absl::Status StepWorker::ReadyLocked() const {
  if (!failure_.ok()) return failure_;
  if (in_flight_ >= kMaxStepsInFlight) {
    return absl::ResourceExhaustedError(
        StrCat(in_flight_, " steps are in flight, allowed: ", kMaxStepsInFlight));
  }
  return absl::OkStatus();
}

absl::Status StepWorker::Ready() const {
  std::lock_guard lock(mutex_);
  return ReadyLocked();
}

absl::Status StepWorker::Submit(StepPlan plan) {
  std::lock_guard lock(mutex_);
  MILLRACE_RETURN_IF_ERROR(ReadyLocked());
  plans_.push_back(std::move(plan));
  ++in_flight_;
  changed_.notify_all();
  return absl::OkStatus();
}

std::optional<StepResult> StepWorker::TakeLocked() {
  if (results_.empty()) return std::nullopt;
  std::optional<StepResult> result(std::move(results_.front()));
  results_.pop_front();
  --in_flight_;
  return result;
}

std::optional<StepResult> StepWorker::Poll() {
  std::lock_guard lock(mutex_);
  return TakeLocked();
}

std::optional<StepResult> StepWorker::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !results_.empty() || in_flight_ == 0; });
  return TakeLocked();
}

void StepWorker::Work() {
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default of 50 us would more than double kLook
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!plans_.empty()) {
      StartNext(lock);
    } else if (running_.empty()) {
      if (stopping_) return;
      changed_.wait(lock, [this] { return stopping_ || !plans_.empty(); });
    } else if (!failure_.ok() || runner_.Done()) {
      FinishOldest(lock);
    } else {
      changed_.wait_for(lock, kLook);
    }
  }
}

void StepWorker::StartNext(std::unique_lock<std::mutex>& lock) {
  StepPlan plan = std::move(plans_.front());
  plans_.pop_front();
  running_.push_back(plan.id);
  if (!failure_.ok()) return;
  lock.unlock();
  runner_.Start(std::move(plan));
  lock.lock();
}

void StepWorker::FinishOldest(std::unique_lock<std::mutex>& lock) {
  StepResult result;
  if (failure_.ok()) {
    lock.unlock();
    result = runner_.Finish();
    lock.lock();
  } else {
    result.status = failure_;
  }
  result.id = running_.front();
  running_.pop_front();
  if (!result.status.ok()) failure_ = result.status;
  results_.push_back(std::move(result));
  changed_.notify_all();
  if (!wake_) return;
  const std::function<void()> wake = wake_;
  lock.unlock();
  wake();
  lock.lock();
}

}  // namespace millrace
