#include <utility>

#include "nodes/control.h"

namespace millrace::nodes {

void Outbox::Add(v1::Message message) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    messages_.push_back(std::move(message));
  }
  changed_.notify_one();
}

void Outbox::Close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_one();
}

std::optional<v1::Message> Outbox::Next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return closed_ || !messages_.empty(); });
  if (messages_.empty()) return std::nullopt;
  std::optional<v1::Message> message(std::move(messages_.front()));
  messages_.pop_front();
  return message;
}

}  // namespace millrace::nodes
