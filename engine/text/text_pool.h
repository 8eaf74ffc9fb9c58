// Threads that work for tenants in turns: on texts, and on what else one tenant could keep busy.
#ifndef MILLRACE_ENGINE_TEXT_TEXT_POOL_H_
#define MILLRACE_ENGINE_TEXT_TEXT_POOL_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "scheduler/sequence_request.h"

namespace millrace {

// Long jobs have threads of their own, which the operating system runs after those that a token
// waits for (they are nicer by 3). The jobs of one kind run oldest first where they are one
// tenant's. Of several tenants with jobs that may run, the one goes first whose jobs had the fewest
// bytes, over its weight. A tenant that had nothing waiting has saved nothing up: it joins where
// the job began that was furthest ahead of those that ran. One that has nothing running while all
// threads are at work for others gets a spare one, as long as there is one.
class TextPool {
 public:
  // From this many bytes of text on (or as many bytes of tokens), a job is a long one. One of fewer
  // takes milliseconds, so that an ordinary prompt does not wait among those of megabytes.
  static constexpr size_t kLongBytes = 64 << 10;
  // Bound on all texts that wait, of which one tenant alone has half. A text that nothing else
  // waits beside is taken whatever its size: a message has at most 32 MiB.
  static constexpr size_t kMaxWaitingBytes = 512 << 20;
  static constexpr int kSpareThreads = 8;

  struct Options {
    int threads = 2;  // short jobs that run at once, beside those on spare threads
    int spare_threads = kSpareThreads;
    // Long jobs that run at once, likewise. 0: there are none.
    int long_threads = 1;
    size_t long_bytes = kLongBytes;
    // Jobs that may wait, and their bytes. A tenant has half of what the others leave of both, but
    // its first job may have all of the bytes that are left. So one tenant never fills the pool for
    // the others; many of them together may.
    size_t capacity = 0;
    size_t waiting_bytes = kMaxWaitingBytes;
    // The cost of a job beside its bytes' cost, in bytes.
    size_t job_bytes = 4 << 10;
  };
  explicit TextPool(const Options& options);
  // For texts: short ones have `threads` >= 2, long ones one less.
  TextPool(int threads, size_t capacity, int spare_threads = kSpareThreads);
  TextPool(const TextPool&) = delete;
  TextPool& operator=(const TextPool&) = delete;
  // Calls End.
  ~TextPool();
  // Runs what waits, then ends the threads. Called by one thread; later calls do nothing.
  void End();

  // Queues `work` on a text of `bytes` bytes, for a tenant (0: none). Never waits. Returns
  // ResourceExhausted if too much waits, or Unavailable after End; `work` will then not run.
  // `is_over`, which may be null, returns whether no caller waits for the work any more. It is
  // called with the pool's lock held.
  using IsOver = std::function<bool(SteadyTime now)>;
  absl::Status Submit(TenantShare tenant, size_t bytes, std::function<void()> work,
                      IsOver is_over = nullptr);

  // Takes out the work that waits and is over, and returns it for the caller to run.
  std::vector<std::function<void()>> Withdraw(SteadyTime now);

 private:
  struct Job {
    uint64_t number;  // in the order of Submit
    size_t bytes;
    std::function<void()> work;
    IsOver is_over;
  };
  // The jobs of one tenant.
  struct Lane {
    int32_t weight = 1;
    std::deque<Job> short_jobs;
    std::deque<Job> long_jobs;
    size_t waiting_bytes = 0;
    size_t running = 0;
    int64_t served = 0;  // bytes over weight
    size_t num_waiting() const { return short_jobs.size() + long_jobs.size(); }
    std::deque<Job>& jobs(bool is_long) { return is_long ? long_jobs : short_jobs; }
  };
  struct Next {
    Lane* lane = nullptr;
    bool is_long = false;
    bool spare = false;
  };

  void Run(bool runs_long);
  // With mutex_ held.
  absl::Status CheckRoom(const Lane& lane, size_t bytes) const;
  bool MayRun(const Lane& lane, bool is_long, bool& spare) const;
  std::optional<Next> FindNext(bool is_long) const;
  Job Take(const Next& next);
  void Finish(const Next& next);
  void LeaveIfIdle(Lane& lane);
  void Wake(bool is_long);
  // The number of jobs that run as this one does.
  size_t& RunningLike(const Next& next);

  const Options options_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable short_changed_, long_changed_;
  // Never forgotten: a tenant that leaves and returns at once gains nothing.
  std::map<uint32_t, Lane> lanes_;
  std::set<Lane*> active_;  // those that have jobs, waiting or running
  int64_t floor_ = 0;       // the most that a lane had been served when a job of it began
  size_t num_waiting_ = 0;
  size_t waiting_bytes_ = 0;
  uint64_t next_number_ = 0;
  size_t short_running_ = 0;  // but for those on spare threads
  size_t long_running_ = 0;   // likewise
  size_t spare_running_ = 0;
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_TEXT_TEXT_POOL_H_
