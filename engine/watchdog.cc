#include "engine/watchdog.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/log.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kEngine);
constexpr Duration kPeriod = std::chrono::milliseconds(250);
constexpr Duration kFarTooLate = std::chrono::seconds(2);

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
  SteadyTime before = Clock::Real().Now();
  while (!ends_changed_.wait_for(lock, kPeriod, [this] { return ends_; })) {
    lock.unlock();
    const SteadyTime now = parts_.clock.Now();
    const SteadyTime real_now = Clock::Real().Now();
    if (real_now - std::exchange(before, real_now) > kFarTooLate) resumed_ = now;
    CheckStall(now);
    CancelSlowReaders(now);
    // The text pool may be at work for longer than a request has time, and what waits holds places
    // of its tenant's. Work that is over finds so before it reads anything.
    for (const auto& work : parts_.pool->Withdraw(now)) work();
    lock.lock();
  }
}

void Watchdog::CheckStall(SteadyTime now) {
  const Duration timeout = parts_.options.stall_timeout;
  const std::optional<SteadyTime> since = parts_.loop.BusySince();
  // Who has stalled goes on to do so.
  const SteadyTime resumed = stalled_ ? SteadyTime::min() : resumed_;
  const bool stalled = since.has_value() && now - std::max(*since, resumed) >= timeout;
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
    if (since.has_value() && now - std::max(*since, resumed_) >= parts_.options.read_timeout) {
      parts_.Cancel(request, CancelReason::kTooSlow);
    }
  }
}

}  // namespace millrace
