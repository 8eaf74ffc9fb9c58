#include <utility>

#include "nodes/control.h"

namespace millrace::nodes {

void Outbox::Add(v1::Message message) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    messages_.push_back(std::move(message));
  }
  changed_.notify_all();
}

void Outbox::Close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

std::optional<v1::Message> Outbox::Next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return closed_ || !messages_.empty(); });
  if (messages_.empty()) {
    ended_ = true;
    changed_.notify_all();
    return std::nullopt;
  }
  read_ = true;
  std::optional<v1::Message> message(std::move(messages_.front()));
  messages_.pop_front();
  return message;
}

void Outbox::AwaitEnd(Duration grace) {
  std::unique_lock lock(mutex_);
  if (!read_) return;  // no stream reads it
  changed_.wait_for(lock, grace, [this] { return ended_; });
}

}  // namespace millrace::nodes
