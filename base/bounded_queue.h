// A bounded queue between threads. A push to a full queue fails instead of waiting.
#ifndef MILLRACE_BASE_BOUNDED_QUEUE_H_
#define MILLRACE_BASE_BOUNDED_QUEUE_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace millrace {

enum class PushResult { kPushed, kFull, kClosed };

// A FIFO queue with any number of producers and consumers. After Close nothing more is accepted,
// and the remaining items can still be taken.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // Appends `item` without waiting. Leaves `item` unchanged unless the result is kPushed.
  PushResult TryPush(T&& item) {
    std::lock_guard lock(mutex_);
    if (closed_) return PushResult::kClosed;
    if (items_.size() >= capacity_) return PushResult::kFull;
    items_.push_back(std::move(item));
    changed_.notify_one();
    return PushResult::kPushed;
  }

  // Waits for the oldest item and returns it, or nullopt once the queue is closed and empty.
  std::optional<T> Pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || !items_.empty(); });
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  // Takes all current items, oldest first, under one lock. Never waits.
  std::deque<T> TakeAll() {
    std::lock_guard lock(mutex_);
    return std::exchange(items_, {});
  }

  // Closes the queue and ends every wait. May be called more than once.
  void Close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

  size_t capacity() const { return capacity_; }
  size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_BASE_BOUNDED_QUEUE_H_
