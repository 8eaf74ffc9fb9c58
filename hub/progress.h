// How far a fetch is: a bar that is drawn anew on a terminal, now and then a line in the log
// elsewhere.
#ifndef MILLRACE_HUB_PROGRESS_H_
#define MILLRACE_HUB_PROGRESS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace millrace {

// "512 B", "3.4 MiB", "1.2 GiB"
std::string ShortSize(int64_t bytes);

// "[######------------------]" of a share from 0 to 1: full at 1 alone.
std::string ProgressBar(double share);

class Progress {
 public:
  // `done` bytes of `total` are there already.
  Progress(std::string what, int64_t done, int64_t total);
  ~Progress();

  // From any thread; negative where bytes turned out to be wrong.
  void Add(int64_t bytes) { done_ += bytes; }

 private:
  void Run();
  // Without the bar.
  std::string Line(int64_t done, double share, double seconds) const;

  const std::string what_;
  const int64_t before_;
  const int64_t total_;
  std::atomic<int64_t> done_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_HUB_PROGRESS_H_
