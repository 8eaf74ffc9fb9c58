// How far the loading of a model has come, for those who wait for it.
#ifndef MILLRACE_BASE_LOAD_PROGRESS_H_
#define MILLRACE_BASE_LOAD_PROGRESS_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

namespace millrace {

// Thread-safe.
class LoadProgress {
 public:
  // Begins a stage, as "fetching org/name". Its size is unknown until SetTotal.
  void Begin(std::string stage);
  // Sets the bytes of the stage, of which `done` were there before it began.
  void SetTotal(int64_t done, int64_t total);
  // Adds to the bytes done; negative if some turned out to be wrong.
  void Add(int64_t bytes) { done_ += bytes; }

  // Returns "fetching org/name: 34 % of 1200 MiB", without the share where the size is unknown;
  // empty before the first stage.
  std::string Describe() const;

 private:
  mutable std::mutex mutex_;
  std::string stage_;  // guarded by mutex_
  int64_t total_ = 0;  // guarded by mutex_; 0: unknown
  std::atomic<int64_t> done_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_BASE_LOAD_PROGRESS_H_
