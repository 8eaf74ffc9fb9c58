// The threads that run the ranks of tensor parallelism, one a rank, for any device.
#ifndef MILLRACE_EXECUTORS_RANK_THREADS_H_
#define MILLRACE_EXECUTORS_RANK_THREADS_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "executors/rank_group.h"

namespace millrace {

// Used by one thread at a time, which is none of the ranks'.
//
// After an error no rank runs again: the group stays aborted. A rank that is stuck may then still
// hold on to everything that its body refers to. The owner calls WaitIdle, and if it returns
// false leaks all of it together with this object, whose destructor would wait for the rank.
class RankThreads {
 public:
  // A part of a step, run by one rank.
  using Body = std::function<absl::Status(int rank)>;

  // `looks`: as RankGroup has it. `timeout`: how long ranks may get no further, which is to pass a
  // barrier of the group or to return.
  RankThreads(int size, Duration timeout, int looks = RankGroup::kFewLooks);
  ~RankThreads();  // waits for bodies that still run
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  int size() const { return group_.size(); }
  RankGroup& group() { return group_; }

  // Has each rank's thread call body(rank), and waits until all have returned. An error of one
  // aborts the group, which ends the other ranks' waits. Returns Unavailable, naming the rank, if a
  // rank returned an error or if all got no further for the timeout. The body must not throw.
  absl::Status Run(Body body);

  // Waits until no body runs, for `grace` at most. Returns whether none does.
  bool WaitIdle(Duration grace);

 private:
  void Work(int rank);
  // The ranks that hold up the others, and how many there are: "ranks 1, 3 of 4".
  std::string StuckRanks() const;
  int64_t Progress() const;

  RankGroup group_;
  const Duration timeout_;
  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable returned_;
  // Guarded by mutex_:
  Body body_;
  uint64_t runs_ = 0;
  std::vector<bool> busy_;  // by rank
  int num_busy_ = 0;
  bool stopping_ = false;

  std::vector<std::thread> threads_;  // last, since they use the members above
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_RANK_THREADS_H_
