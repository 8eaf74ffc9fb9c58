// The threads that turn prompts into tokens.
#ifndef MILLRACE_ENGINE_TEXT_POOL_H_
#define MILLRACE_ENGINE_TEXT_POOL_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"

namespace millrace {

// Jobs run oldest first, but for two rules: all threads but one at most are at work on long texts,
// so that a short prompt never waits behind a row of long ones; and tenants take turns at these.
class TextPool {
 public:
  // From this many bytes of text on (or as many bytes of tokens), a job is a long one.
  static constexpr size_t kLongBytes = 16 << 10;
  // Bound on all texts that wait, unless one is alone: one may be as large as a message, 32 MiB.
  static constexpr size_t kMaxWaitingBytes = 256 << 20;

  // `threads` >= 2; `capacity` jobs may wait.
  TextPool(int threads, size_t capacity);
  TextPool(const TextPool&) = delete;
  TextPool& operator=(const TextPool&) = delete;
  // Runs what waits, then ends.
  ~TextPool();

  // Queues `work` on a text of `bytes` bytes, for a tenant (Tenant::id; 0: none). Never waits.
  // Returns ResourceExhausted if the pool is full; `work` will then not run. `is_over`, which may
  // be null, says whether nobody waits for the work any more. It is called with the pool's lock
  // held.
  using IsOver = std::function<bool(SteadyTime now)>;
  absl::Status Submit(uint32_t tenant, size_t bytes, std::function<void()> work,
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

  void Run();
  bool MayTakeLong() const;
  std::deque<Job>& NextLong() { return long_.at(turns_.front()); }
  Job Take(bool is_long);

  const size_t capacity_;
  const size_t max_long_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> short_;                     // guarded by mutex_
  std::map<uint32_t, std::deque<Job>> long_;  // guarded by mutex_: by tenant, none empty
  std::deque<uint32_t> turns_;                // guarded by mutex_: the tenants of long_, next first
  size_t num_waiting_ = 0;                    // guarded by mutex_
  size_t waiting_bytes_ = 0;                  // guarded by mutex_
  uint64_t next_number_ = 0;                  // guarded by mutex_
  size_t long_running_ = 0;                   // guarded by mutex_
  bool closed_ = false;                       // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_TEXT_POOL_H_
