// Shows the progress of a download: a redrawn bar on a terminal, otherwise an occasional log line.
#ifndef MILLRACE_HUB_PROGRESS_H_
#define MILLRACE_HUB_PROGRESS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "base/load_progress.h"

namespace millrace {

// Formats a size: "512 B", "3.4 MiB", "1.2 GiB".
std::string ShortSize(int64_t bytes);

// Formats a share from 0 to 1 as "[######------------------]". The bar is full only at 1.
std::string ProgressBar(double share);

class Progress {
 public:
  // Begins when `done` of `total` bytes are already present. `also`, which may be null, is told.
  Progress(std::string what, int64_t done, int64_t total, LoadProgress* also = nullptr);
  ~Progress();

  // Adds to the bytes done. May be called from any thread; negative if bytes turned out to be
  // wrong.
  void Add(int64_t bytes) {
    done_ += bytes;
    if (also_ != nullptr) also_->Add(bytes);
  }

 private:
  void Run();
  // Formats the progress without the bar.
  std::string Line(int64_t done, double share, double seconds) const;

  const std::string what_;
  const int64_t before_;
  const int64_t total_;
  LoadProgress* const also_;
  std::atomic<int64_t> done_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_HUB_PROGRESS_H_
