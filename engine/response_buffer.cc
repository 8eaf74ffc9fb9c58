#include "engine/response_buffer.h"

#include <utility>

namespace millrace {
namespace {

// An answer that is read as it comes has one event or two here; what a slow reader made of it is
// given back.
constexpr size_t kKeptEvents = 4;

// An echoed prompt, of which there is one, has no part in the bound: with log-probabilities it may
// be larger, and the first token follows it at once, before any reader could have taken it.
size_t Bytes(const OutputEvent& event) {
  if (event.echo) return sizeof(event);
  size_t bytes = sizeof(event) + event.text.size() + event.tokens.size() * sizeof(Token);
  bytes += event.reasoning.size();
  for (const ToolCallDelta& call : event.calls) {
    bytes += sizeof(call) + call.name.size() + call.arguments.size() + call.id.size();
  }
  for (const TokenDetail& detail : event.details) {
    bytes += sizeof(detail) + detail.bytes.size();
    for (const TokenAlternative& other : detail.top) bytes += sizeof(other) + other.bytes.size();
  }
  return bytes;
}

}  // namespace

bool ResponseBuffer::Push(OutputEvent event) {
  const size_t bytes = Bytes(event);
  Ready ready;
  {
    std::lock_guard lock(mutex_);
    if (finished_ || abandoned_) return true;
    // One event always fits an empty buffer: no reader could have been fast enough for it.
    if (!empty() && bytes_ + bytes > kMaxBytes) return false;
    if (empty()) {
      progress_ = clock_.Now();
      ready = ready_;
    }
    bytes_ += bytes;
    events_.push_back(std::move(event));
  }
  if (ready && *ready) (*ready)();
  return true;
}

bool ResponseBuffer::Finish(OutputEvent event) {
  Ready ready;  // called and let go without the lock: a call may end with it
  bool was_empty = false;
  {
    std::lock_guard lock(mutex_);
    if (finished_) return false;
    finished_ = true;
    if (abandoned_) return true;
    ready.swap(ready_);
    was_empty = empty();
    if (was_empty) progress_ = clock_.Now();
    bytes_ += Bytes(event);
    events_.push_back(std::move(event));
  }
  if (was_empty && ready && *ready) (*ready)();
  return true;
}

std::optional<OutputEvent> ResponseBuffer::Next() {
  std::lock_guard lock(mutex_);
  if (empty()) return std::nullopt;
  std::optional<OutputEvent> event(std::move(events_[first_++]));
  bytes_ -= Bytes(*event);
  progress_ = clock_.Now();
  if (empty()) {
    if (events_.capacity() > kKeptEvents) events_ = std::vector<OutputEvent>();
    events_.clear();
    first_ = 0;
  } else if (first_ > kKeptEvents && first_ * 2 > events_.size()) {
    events_.erase(events_.begin(), events_.begin() + static_cast<ptrdiff_t>(first_));
    first_ = 0;
  }
  return event;
}

void ResponseBuffer::Abandon() {
  Ready ready;  // let go without the lock, as in Finish
  std::vector<OutputEvent> events;
  std::lock_guard lock(mutex_);
  abandoned_ = true;
  ready.swap(ready_);
  events.swap(events_);
  first_ = 0;
  bytes_ = 0;
}

bool ResponseBuffer::finished() const {
  std::lock_guard lock(mutex_);
  return finished_;
}

std::optional<SteadyTime> ResponseBuffer::UnreadSince() const {
  std::lock_guard lock(mutex_);
  if (empty()) return std::nullopt;
  return progress_;
}

}  // namespace millrace
