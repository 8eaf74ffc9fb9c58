#include "base/log_writer.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <system_error>
#include <thread>
#include <utility>

namespace millrace {

LogWriter::~LogWriter() {
  std::unique_lock lock(mutex_);
  ending_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return !running_; });
}

size_t LogWriter::WriteNow(std::string_view line) const {
  // A pipe that is ready takes PIPE_BUF bytes at least, without waiting.
  if (line.size() > PIPE_BUF) return 0;
  pollfd ready = {.fd = file_, .events = POLLOUT, .revents = 0};
  if (poll(&ready, 1, 0) != 1) return 0;
  const ssize_t written = write(file_, line.data(), line.size());
  if (written >= 0) return static_cast<size_t>(written);
  return errno == EAGAIN || errno == EINTR ? 0 : line.size();
}

void LogWriter::Write(std::string line) {
  const std::lock_guard lock(mutex_);
  if (queue_.empty() && !writing_) {
    line.erase(0, WriteNow(line));
    if (line.empty()) return;
  }
  if (queued_bytes_ + line.size() > kMostQueued || !StartThread()) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  queued_bytes_ += line.size();
  queue_.push_back(std::move(line));
  changed_.notify_all();
}

// With mutex_ held. False: the system gives no thread.
bool LogWriter::StartThread() {
  if (running_) return true;
  try {
    std::thread([this] { Run(); }).detach();
  } catch (const std::system_error&) {
    return false;
  }
  running_ = true;
  return true;
}

void LogWriter::Run() {
  uint64_t told = 0;  // of dropped_
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) break;
    std::string text = std::move(queue_.front());
    queue_.pop_front();
    queued_bytes_ -= text.size();
    if (queue_.empty()) {
      const uint64_t dropped = dropped_;
      if (dropped > told) text += lost_line_(dropped - told);
      told = dropped;
    }
    writing_ = true;
    lock.unlock();
    for (std::string_view rest = text; !rest.empty();) {
      const ssize_t written = write(file_, rest.data(), rest.size());
      if (written < 0 && errno == EAGAIN) {
        pollfd ready = {.fd = file_, .events = POLLOUT, .revents = 0};
        poll(&ready, 1, /*timeout=*/-1);
      } else if (written < 0 && errno != EINTR) {
        break;  // the reader is gone
      } else if (written > 0) {
        rest.remove_prefix(static_cast<size_t>(written));
      }
    }
    lock.lock();
    writing_ = false;
    changed_.notify_all();
  }
  running_ = false;
  changed_.notify_all();
}

bool LogWriter::Flush(Duration most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, most, [this] { return queue_.empty() && !writing_; });
}

}  // namespace millrace
