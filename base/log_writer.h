// Writes lines to a file descriptor without ever waiting for who reads it.
#ifndef MILLRACE_BASE_LOG_WRITER_H_
#define MILLRACE_BASE_LOG_WRITER_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include <sys/types.h>

#include "base/clock.h"

namespace millrace {

// A line is written before Write returns if the descriptor takes it at once, so that the last line
// before a crash is not lost. Otherwise it waits, up to a bound, for a thread that may block;
// beyond the bound lines are dropped and counted, and so are those that the descriptor refuses, as
// on a full disk. Thread-safe.
class LogWriter {
 public:
  // The most bytes that wait.
  static constexpr size_t kMostQueued = size_t{1} << 20;

  // `lost_line` returns the line that says how many were dropped; it is written once the reader has
  // caught up, or the descriptor takes lines again.
  LogWriter(int file, std::function<std::string(uint64_t dropped)> lost_line)
      : file_(file), lost_line_(std::move(lost_line)) {}
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;
  // Waits until a thread that was started has written what it can; so let the reader read or go.
  ~LogWriter();

  // Writes a line with its line end, or leaves it to the thread, or drops it.
  void Write(std::string line);

  // Waits until nothing waits, at most for `most`. Returns whether all was written.
  bool Flush(Duration most);

  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  // A line, or the rest of one whose beginning was written.
  struct Piece {
    std::string text;
    bool is_rest = false;
  };

  // Writes once. Returns how much was written, or the error as a negative number.
  ssize_t WriteSome(std::string_view text);
  ssize_t WriteWithoutWaiting(std::string_view text);
  void CountRefused(ssize_t error);
  void TellLost();
  bool StartThread();
  void Run();
  ssize_t WriteAll(const Piece& piece);

  const int file_;
  const std::function<std::string(uint64_t dropped)> lost_line_;
  std::atomic<uint64_t> dropped_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> queue_;  // guarded by mutex_
  size_t queued_bytes_ = 0;  // guarded by mutex_
  bool writing_ = false;     // guarded by mutex_: the thread has a line that it took
  bool running_ = false;     // guarded by mutex_: there is a thread
  bool ending_ = false;      // guarded by mutex_
  uint64_t told_ = 0;        // guarded by mutex_: of dropped_
  // Set if the last write ended within a line. Belongs to the one that may write: the thread while
  // it is `writing_`, else the holder of mutex_.
  bool in_line_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_BASE_LOG_WRITER_H_
