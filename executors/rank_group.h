// Where the ranks of tensor parallelism (RankSpec) that are threads of one process wait for one
// another.
#ifndef MILLRACE_EXECUTORS_RANK_GROUP_H_
#define MILLRACE_EXECUTORS_RANK_GROUP_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "absl/status/status.h"

namespace millrace {

// A barrier that can be aborted. Safe to use from any thread.
class RankGroup {
 public:
  // Looks at the phase before a rank sleeps. Ranks do the same work, so that the others are near;
  // but where there are fewer cores than ranks, the others need this one.
  static constexpr int kFewLooks = 200;

  // `looks`: more where ranks meet every few microseconds, on cores of their own.
  explicit RankGroup(int size, int looks = kFewLooks) : looks_(looks), arrivals_(size) {}
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  int size() const { return static_cast<int>(arrivals_.size()); }

  // Waits until every rank has called this as often as the caller has. What ranks wrote before it
  // is visible to all of them after it. Returns false, at once and from then on, if the group was
  // aborted: others may then be anywhere. The wait itself has no limit, since only the thread that
  // started the ranks sees whether any of them gets further: RankThreads aborts the group if not.
  [[nodiscard]] bool Barrier(int rank);

  // Ends all waits. `why` is an error; the first one stays.
  void Abort(absl::Status why);

  // OK, or the error that the group was aborted with.
  absl::Status status() const;

  // How often a rank has called Barrier: a rank whose number stands still is stuck.
  int64_t arrivals(int rank) const { return arrivals_[rank].value.load(std::memory_order_relaxed); }

 private:
  struct alignas(64) Counter {
    std::atomic<int64_t> value{0};
  };

  void NextPhase();
  void AwaitPhaseAfter(uint32_t phase);

  const int looks_;
  std::vector<Counter> arrivals_;         // by rank
  alignas(64) std::atomic<int> here_{0};  // ranks that wait
  // Changes when all ranks have arrived, and when the group is aborted.
  alignas(64) std::atomic<uint32_t> phase_{0};
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // of phase_
  absl::Status why_;                 // guarded by mutex_
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_RANK_GROUP_H_
