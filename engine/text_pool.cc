#include "engine/text_pool.h"

#include <utility>

#include "base/strings.h"
#include "engine/request.h"

namespace millrace {

TextPool::TextPool(int threads, size_t capacity)
    : capacity_(capacity), max_long_(static_cast<size_t>(threads) - 1) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

TextPool::~TextPool() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status TextPool::Submit(size_t bytes, std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    const size_t waiting = short_.size() + long_.size();
    if (waiting >= capacity_) {
      return QueueFull(StrCat(waiting, " texts wait; allowed: ", capacity_));
    }
    if (waiting > 0 && waiting_bytes_ + bytes > kMaxWaitingBytes) {
      return QueueFull(StrCat("texts of ", waiting_bytes_, " bytes wait, and this one has ", bytes,
                              "; allowed: ", kMaxWaitingBytes));
    }
    std::deque<Job>& lane = bytes >= kLongBytes ? long_ : short_;
    lane.push_back({next_number_++, bytes, std::move(work)});
    waiting_bytes_ += bytes;
  }
  changed_.notify_one();
  return absl::OkStatus();
}

bool TextPool::MayTakeLong() const { return !long_.empty() && long_running_ < max_long_; }

void TextPool::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(
        lock, [this] { return !short_.empty() || MayTakeLong() || (closed_ && long_.empty()); });
    if (short_.empty() && !MayTakeLong()) return;
    const bool take_long =
        MayTakeLong() && (short_.empty() || long_.front().number < short_.front().number);
    std::deque<Job>& lane = take_long ? long_ : short_;
    Job job = std::move(lane.front());
    lane.pop_front();
    waiting_bytes_ -= job.bytes;
    if (take_long) ++long_running_;
    lock.unlock();
    job.work();
    job.work = nullptr;  // let go of what it holds before the lock is taken
    lock.lock();
    if (take_long) {
      --long_running_;
      changed_.notify_all();
    }
  }
}

}  // namespace millrace
