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

ssize_t LogWriter::WriteSome(std::string_view text) {
  const ssize_t written = write(file_, text.data(), text.size());
  if (written < 0) return -errno;
  if (written > 0) in_line_ = text[written - 1] != '\n';
  return written;
}

// Returns 0 where the descriptor would have to be waited for.
ssize_t LogWriter::WriteWithoutWaiting(std::string_view text) {
  // A pipe that is ready takes PIPE_BUF bytes at least, without waiting.
  if (text.size() > PIPE_BUF) return 0;
  pollfd ready = {.fd = file_, .events = POLLOUT, .revents = 0};
  if (poll(&ready, 1, 0) != 1) return 0;
  const ssize_t written = WriteSome(text);
  return written == -EAGAIN || written == -EINTR ? 0 : written;
}

// Where the reader is gone, nobody is left to miss a line.
void LogWriter::CountRefused(ssize_t error) {
  if (error != -EPIPE) dropped_.fetch_add(1, std::memory_order_relaxed);
}

// Says how many lines are missing, where that was not said. With mutex_ held.
void LogWriter::TellLost() {
  const uint64_t dropped = dropped_;
  if (dropped == told_) return;
  const std::string line = lost_line_(dropped - told_);
  if (WriteWithoutWaiting(line) == static_cast<ssize_t>(line.size())) told_ = dropped;
}

void LogWriter::Write(std::string line) {
  const std::lock_guard lock(mutex_);
  bool is_rest = false;
  if (queue_.empty() && !writing_) {
    const size_t ended = in_line_ ? 1 : 0;  // the line before, by this one's first byte
    const ssize_t written = WriteWithoutWaiting(ended > 0 ? "\n" + line : line);
    if (written < 0) return CountRefused(written);
    is_rest = written > 0;
    if (is_rest) line.erase(0, written - ended);
    if (line.empty()) return TellLost();
  }
  if (queued_bytes_ + line.size() > kMostQueued || !StartThread()) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  queued_bytes_ += line.size();
  queue_.push_back({std::move(line), is_rest});
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
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) break;
    const Piece piece = std::move(queue_.front());
    queue_.pop_front();
    queued_bytes_ -= piece.text.size();
    writing_ = true;
    lock.unlock();
    if (const ssize_t error = WriteAll(piece); error != 0) CountRefused(error);
    lock.lock();
    if (const uint64_t dropped = dropped_; queue_.empty() && dropped != told_) {
      const std::string lost = lost_line_(dropped - told_);
      lock.unlock();
      const ssize_t error = WriteAll({lost});
      lock.lock();
      if (error == 0) told_ = dropped;
    }
    writing_ = false;
    changed_.notify_all();
  }
  running_ = false;
  changed_.notify_all();
}

// Waits for the descriptor. Returns 0, or the error by which it refused, as a negative number.
ssize_t LogWriter::WriteAll(const Piece& piece) {
  const std::string begun = in_line_ && !piece.is_rest ? "\n" + piece.text : piece.text;
  for (std::string_view rest = begun; !rest.empty();) {
    const ssize_t written = WriteSome(rest);
    if (written == -EAGAIN) {
      pollfd ready = {.fd = file_, .events = POLLOUT, .revents = 0};
      poll(&ready, 1, /*timeout=*/-1);
    } else if (written < 0 && written != -EINTR) {
      return written;
    } else if (written > 0) {
      rest.remove_prefix(static_cast<size_t>(written));
    }
  }
  return 0;
}

bool LogWriter::Flush(Duration most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, most, [this] { return queue_.empty() && !writing_; });
}

}  // namespace millrace
