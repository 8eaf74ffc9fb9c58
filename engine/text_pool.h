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

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"

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

  // Queues `work` on a text of `bytes` bytes, for a tenant (Tenant::id; 0: none) and an owner, who
  // may be anyone or null. Never waits. Returns ResourceExhausted if the pool is full; `work` will
  // then not run.
  absl::Status Submit(uint32_t tenant, const void* owner, size_t bytes, std::function<void()> work);

  // Drops the work of these owners that has not begun.
  void Withdraw(const absl::flat_hash_set<const void*>& owners);

 private:
  struct Job {
    uint64_t number;  // in the order of Submit
    const void* owner;
    size_t bytes;
    std::function<void()> work;
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
