#include "engine/watchdog.h"

#include <memory>
#include <optional>

#include "base/log.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kEngine);
constexpr Duration kPeriod = std::chrono::milliseconds(250);

}  // namespace

Watchdog::Watchdog(EngineParts* parts) : parts_(*parts), thread_([this] { Run(); }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ends_changed_.notify_all();
  thread_.join();
}

void Watchdog::Run() {
  std::unique_lock lock(mutex_);
  while (!ends_changed_.wait_for(lock, kPeriod, [this] { return ends_; })) {
    lock.unlock();
    const SteadyTime now = parts_.clock.Now();
    CheckStall(now);
    CancelSlowReaders(now);
    lock.lock();
  }
}

void Watchdog::CheckStall(SteadyTime now) {
  const Duration timeout = parts_.options.stall_timeout;
  const std::optional<SteadyTime> since = parts_.loop.BusySince();
  const bool stalled = since.has_value() && now - *since >= timeout;
  if (stalled_.exchange(stalled) == stalled) return;
  if (stalled) {
    parts_.metrics.OnStall();
    kLog.Error("stalled: there is work, and no step has finished for ", ToSeconds(timeout), " s");
  } else {
    kLog.Info("steps finish again");
  }
}

void Watchdog::CancelSlowReaders(SteadyTime now) {
  for (const std::shared_ptr<LiveRequest>& request : parts_.admission.requests()) {
    const std::optional<SteadyTime> since = request->buffer.UnreadSince();
    if (since.has_value() && now - *since >= parts_.options.read_timeout) {
      parts_.Cancel(request, CancelReason::kTooSlow);
    }
  }
}

}  // namespace millrace
