#include "engine/text/text_pool.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

#include "base/strings.h"
#include "engine/request/request.h"

namespace millrace {
namespace {

// A thread that runs long jobs is so much nicer than the process: it has a third of a core that a
// step's threads want, too, and all of one that nobody wants. That it gives way at once is by its
// slice.
constexpr int kNicer = 3;
constexpr int kMostNice = 19;

// Since Linux 6.12 a thread may say how long it wants to run at a time. One that wants to for long
// is stopped at once when another wakes up, which the threads of a token do several times a step.
constexpr uint64_t kLongSliceNs = 100'000'000;

// The first version of what sched_setattr(2) takes: C libraries have no name for it yet.
struct SchedAttr {
  uint32_t size = 48;
  uint32_t policy = SCHED_BATCH;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = kLongSliceNs;
  uint64_t deadline = 0;
  uint64_t period = 0;
};
static_assert(sizeof(SchedAttr) == 48);

// Linux schedules each thread apart. Where it takes neither the jobs run all the same.
void YieldToOthers() {
  const SchedAttr wanted{.nice = std::min(getpriority(PRIO_PROCESS, 0) + kNicer, kMostNice)};
  static_cast<void>(syscall(SYS_sched_setattr, 0, &wanted, 0));
}

}  // namespace

TextPool::TextPool(const Options& options) : options_(options) {
  for (int i = 0; i < options.threads + options.spare_threads; ++i) {
    threads_.emplace_back([this] { Run(/*runs_long=*/false); });
  }
  const int yielding = options.long_threads == 0 ? 0 : options.long_threads + options.spare_threads;
  for (int i = 0; i < yielding; ++i) {
    threads_.emplace_back([this] {
      YieldToOthers();
      Run(/*runs_long=*/true);
    });
  }
}

TextPool::TextPool(int threads, size_t capacity, int spare_threads)
    : TextPool(Options{.threads = threads,
                       .spare_threads = spare_threads,
                       .long_threads = threads - 1,
                       .capacity = capacity}) {}

TextPool::~TextPool() { End(); }

void TextPool::End() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  short_changed_.notify_all();
  long_changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

absl::Status TextPool::CheckRoom(const Lane& lane, size_t bytes) const {
  const size_t mine = lane.num_waiting();
  const size_t others = num_waiting_ - mine;
  const size_t most = (options_.capacity - others + 1) / 2;
  if (mine >= most || num_waiting_ >= options_.capacity) {
    return QueueFull(StrCat(mine, " texts wait; allowed beside ", others, " of others: ", most));
  }
  const size_t other_bytes = waiting_bytes_ - lane.waiting_bytes;
  const size_t all_bytes = options_.waiting_bytes;
  const size_t most_bytes = (all_bytes - std::min(all_bytes, other_bytes)) / 2;
  const bool first = mine == 0 && (others == 0 || other_bytes + bytes <= all_bytes);
  if (!first && lane.waiting_bytes + bytes > most_bytes) {
    return QueueFull(StrCat("texts of ", lane.waiting_bytes, " bytes wait, and this one has ",
                            bytes, "; allowed beside ", other_bytes, " of others: ", most_bytes));
  }
  return absl::OkStatus();
}

absl::Status TextPool::Submit(TenantShare tenant, size_t bytes, std::function<void()> work,
                              IsOver is_over) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return absl::UnavailableError("the threads have ended");
    Lane& lane = lanes_[tenant.id];
    if (absl::Status status = CheckRoom(lane, bytes); !status.ok()) return status;
    if (lane.num_waiting() == 0) lane.served = std::max(lane.served, floor_);
    active_.insert(&lane);
    lane.weight = tenant.weight;
    const bool is_long = bytes >= options_.long_bytes;
    lane.jobs(is_long).push_back({next_number_++, bytes, std::move(work), std::move(is_over)});
    lane.waiting_bytes += bytes;
    ++num_waiting_;
    waiting_bytes_ += bytes;
    Wake(is_long);
  }
  return absl::OkStatus();
}

std::vector<std::function<void()>> TextPool::Withdraw(SteadyTime now) {
  std::vector<std::function<void()>> withdrawn;
  std::lock_guard lock(mutex_);
  const auto withdraw = [&](Lane& lane, std::deque<Job>& jobs) {
    const auto kept = std::stable_partition(jobs.begin(), jobs.end(), [&](const Job& job) {
      return job.is_over == nullptr || !job.is_over(now);
    });
    for (auto job = kept; job != jobs.end(); ++job) {
      --num_waiting_;
      waiting_bytes_ -= job->bytes;
      lane.waiting_bytes -= job->bytes;
      withdrawn.push_back(std::move(job->work));
    }
    jobs.erase(kept, jobs.end());
  };
  for (auto& [tenant, lane] : lanes_) {
    withdraw(lane, lane.short_jobs);
    withdraw(lane, lane.long_jobs);
    LeaveIfIdle(lane);
  }
  return withdrawn;
}

// Sets whether the lane's next job of a kind takes a spare thread.
bool TextPool::MayRun(const Lane& lane, bool is_long, bool& spare) const {
  const auto below = [](size_t running, int allowed) {
    return running < static_cast<size_t>(allowed);
  };
  spare = is_long ? !below(long_running_, options_.long_threads)
                  : !below(short_running_, options_.threads);
  return !spare || (lane.running == 0 && below(spare_running_, options_.spare_threads));
}

std::optional<TextPool::Next> TextPool::FindNext(bool is_long) const {
  std::optional<Next> best;
  const auto rank = [&](Lane* lane) {
    return std::tuple(lane->served, lane->jobs(is_long).front().number);
  };
  for (Lane* lane : active_) {
    Next next{.lane = lane, .is_long = is_long};
    if (lane->jobs(is_long).empty() || !MayRun(*lane, is_long, next.spare)) continue;
    if (!best.has_value() || rank(lane) < rank(best->lane)) best = next;
  }
  return best;
}

// Called where a job of the kind may be able to run: it has come, or a thread is free.
void TextPool::Wake(bool is_long) {
  if (FindNext(is_long).has_value()) (is_long ? long_changed_ : short_changed_).notify_one();
}

size_t& TextPool::RunningLike(const Next& next) {
  if (next.spare) return spare_running_;
  return next.is_long ? long_running_ : short_running_;
}

TextPool::Job TextPool::Take(const Next& next) {
  Lane& lane = *next.lane;
  std::deque<Job>& jobs = lane.jobs(next.is_long);
  Job job = std::move(jobs.front());
  jobs.pop_front();
  --num_waiting_;
  waiting_bytes_ -= job.bytes;
  lane.waiting_bytes -= job.bytes;
  ++lane.running;
  floor_ = std::max(floor_, lane.served);
  lane.served +=
      static_cast<int64_t>(job.bytes + options_.job_bytes) * kMaxTenantWeight / lane.weight;
  ++RunningLike(next);
  return job;
}

void TextPool::Finish(const Next& next) {
  --next.lane->running;
  --RunningLike(next);
  LeaveIfIdle(*next.lane);
}

void TextPool::LeaveIfIdle(Lane& lane) {
  if (lane.running == 0 && lane.num_waiting() == 0) active_.erase(&lane);
}

void TextPool::Run(bool runs_long) {
  std::condition_variable& changed = runs_long ? long_changed_ : short_changed_;
  std::unique_lock lock(mutex_);
  for (;;) {
    std::optional<Next> next;
    changed.wait(lock, [&] {
      next = FindNext(runs_long);
      return next.has_value() || (closed_ && num_waiting_ == 0);
    });
    if (!next.has_value()) return;
    Job job = Take(*next);
    if (closed_ && num_waiting_ == 0) {
      short_changed_.notify_all();
      long_changed_.notify_all();
    }
    Wake(runs_long);
    lock.unlock();
    job.work();
    job = {};  // let go of what it holds before the lock is taken
    lock.lock();
    Finish(*next);
    Wake(!runs_long);  // this thread looks for another job of its own kind itself
  }
}

}  // namespace millrace
