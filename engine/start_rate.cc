#include "engine/start_rate.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "base/strings.h"
#include "engine/request/request.h"

namespace millrace {
namespace {

constexpr int64_t kLeastSamples = 8;
constexpr int64_t kWindow = 32;

// A request is refused only where its wait is this much longer than its time: what is refused
// wrongly is worse than what expires.
constexpr double kSure = 1.25;

}  // namespace

void StartRate::Arrived(uint64_t key, uint32_t tenant, int32_t priority) {
  waiting_[key] = {tenant, priority};
  Queue& queue = queues_[tenant];
  ++queue.waiting[priority];
  ++queue.num_waiting;
}

void StartRate::Remove(uint64_t key) {
  const auto found = waiting_.find(key);
  const auto [tenant, priority] = found->second;
  Queue& queue = queues_[tenant];
  if (--queue.waiting[priority] == 0) queue.waiting.erase(priority);
  // The next arrival has not waited since the last one began.
  if (--queue.num_waiting == 0) {
    queue.last_begun.reset();
    queue.moves = false;
  }
  waiting_.erase(found);
}

void StartRate::Begun(uint64_t key, SteadyTime now) {
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return;
  Queue& queue = queues_[found->second.first];
  if (queue.last_begun.has_value()) {
    queue.samples = std::min(queue.samples + 1, kWindow);
    const double sample = ToSeconds(now - *queue.last_begun);
    queue.seconds += (sample - queue.seconds) / static_cast<double>(queue.samples);
    queue.moves = true;
  }
  queue.last_begun = now;
  Remove(key);
}

void StartRate::Gone(uint64_t key) {
  if (waiting_.contains(key)) Remove(key);
}

std::optional<Duration> StartRate::Wait(uint32_t tenant, int32_t priority) const {
  const auto found = queues_.find(tenant);
  if (found == queues_.end()) return std::nullopt;
  const Queue& queue = found->second;
  if (queue.samples < kLeastSamples || !queue.moves) return std::nullopt;
  int64_t ahead = 0;
  for (const auto& [other, count] : queue.waiting) {
    if (other <= priority) ahead += count;
  }
  if (ahead == 0) return std::nullopt;
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(queue.seconds * static_cast<double>(ahead)));
}

absl::Status StartRate::Check(uint32_t tenant, int32_t priority, Duration left) const {
  const std::optional<Duration> wait = Wait(tenant, priority);
  if (!wait.has_value() || ToSeconds(*wait) <= kSure * ToSeconds(left)) return absl::OkStatus();
  const auto milliseconds = [](Duration time) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  };
  absl::Status status =
      WithRetryAfter(absl::ResourceExhaustedError(StrCat(
                         "the request's deadline is in ", milliseconds(left), " ms, but about ",
                         milliseconds(*wait), " ms are waiting before it")),
                     absl::FromChrono(*wait - left));
  status.SetPayload(kHttpStatusUrl, absl::Cord("503"));
  return status;
}

}  // namespace millrace
