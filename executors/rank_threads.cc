#include "executors/rank_threads.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/strings.h"

namespace millrace {
namespace {

// How often Run looks whether ranks get further: a small part of the timeout.
Duration LookEvery(Duration timeout) {
  return std::clamp<Duration>(timeout / 8, std::chrono::milliseconds(5),
                              std::chrono::milliseconds(100));
}

}  // namespace

RankThreads::RankThreads(int size, Duration timeout, int looks)
    : group_(size, looks), timeout_(timeout), busy_(size, false) {
  for (int rank = 0; rank < size; ++rank) {
    threads_.emplace_back([this, rank] { Work(rank); });
  }
}

RankThreads::~RankThreads() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    start_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void RankThreads::Work(int rank) {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    start_.wait(lock, [&] { return stopping_ || runs_ != seen; });
    if (runs_ == seen) return;
    seen = runs_;
    lock.unlock();
    // body_ stays as it is while a rank is busy.
    const absl::Status status = body_(rank);
    if (!status.ok()) {
      group_.Abort(absl::UnavailableError(
          StrCat("rank ", rank, " of ", size(), " failed: ", status.message())));
    }
    lock.lock();
    busy_[rank] = false;
    if (--num_busy_ == 0) returned_.notify_all();
  }
}

absl::Status RankThreads::Run(Body body) {
  if (absl::Status failed = group_.status(); !failed.ok()) return failed;
  std::unique_lock lock(mutex_);
  body_ = std::move(body);
  busy_.assign(size(), true);
  num_busy_ = size();
  ++runs_;
  start_.notify_all();
  SteadyTime moved = Clock::Real().Now();
  int64_t progress = Progress();
  while (!returned_.wait_for(lock, LookEvery(timeout_), [this] { return num_busy_ == 0; })) {
    const SteadyTime now = Clock::Real().Now();
    const int64_t before = std::exchange(progress, Progress());
    if (progress != before) {
      moved = now;
    } else if (now - moved > timeout_) {
      group_.Abort(absl::UnavailableError(StrCat(StuckRanks(), " got no further for ",
                                                 ToSeconds(timeout_), " s (--step-timeout)")));
      break;
    }
  }
  return group_.status();
}

int64_t RankThreads::Progress() const {
  int64_t progress = size() - num_busy_;
  for (int rank = 0; rank < size(); ++rank) progress += group_.arrivals(rank);
  return progress;
}

std::string RankThreads::StuckRanks() const {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int rank = 0; rank < size(); ++rank) {
    if (busy_[rank]) least = std::min(least, group_.arrivals(rank));
  }
  std::vector<std::string> stuck;
  for (int rank = 0; rank < size(); ++rank) {
    if (busy_[rank] && group_.arrivals(rank) == least) stuck.push_back(StrCat(rank));
  }
  return StrCat(stuck.size() == 1 ? "rank " : "ranks ", JoinList(stuck), " of ", size());
}

bool RankThreads::WaitIdle(Duration grace) {
  std::unique_lock lock(mutex_);
  return returned_.wait_for(lock, grace, [this] { return num_busy_ == 0; });
}

}  // namespace millrace
