#include "engine/answer/response_buffer.h"

#include <algorithm>
#include <utility>

namespace millrace {
namespace {

// An answer that is read as it comes has one event or two here; what a slow reader made of it is
// given back.
constexpr size_t kKeptEvents = 4;

// The most that an echoed prompt is charged of a shared budget, so that one of any size goes
// through where others hold little.
constexpr size_t kMostOfEcho = size_t{32} << 20;

size_t Bytes(const OutputEvent& event) {
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

struct Charge {
  size_t own = 0;     // of ResponseBuffer::kMaxBytes
  size_t shared = 0;  // of the shared budgets
};

// An echoed prompt, of which there is one, has no part in the buffer's own bound: with
// log-probabilities it may be larger, and the first token follows it at once, before any reader
// could have taken it.
Charge ChargeOf(const OutputEvent& event) {
  const size_t bytes = Bytes(event);
  if (!event.echo) return {.own = bytes, .shared = bytes};
  return {.own = sizeof(event), .shared = std::min(bytes, kMostOfEcho)};
}

}  // namespace

void ResponseBuffer::ShareBudgets(std::shared_ptr<UnreadBudgets> budgets,
                                  const std::string& tenant) {
  std::lock_guard lock(mutex_);
  budgets_ = std::move(budgets);
  shared_.emplace(*budgets_, tenant);
}

// A server that is overloaded is behind with all its readers. Those that do read have a second
// budget then, which those that take nothing cannot have used up.
bool ResponseBuffer::TakeShared(size_t bytes) {
  if (!shared_.has_value() || bytes <= kOwnBytes + shared_->bytes()) return true;
  const size_t pieces = (bytes - 1) / kOwnBytes;  // beyond the first, which is the buffer's own
  const size_t more = pieces * kOwnBytes - shared_->bytes();
  if (shared_->all.Take(more).ok()) return true;
  return clock_.Now() - progress_ < kSilence && shared_->behind.Take(more).ok();
}

// Keeps a piece more than is needed, so that a reader that keeps pace asks no budget at each event.
void ResponseBuffer::GiveShared() {
  if (!shared_.has_value() || shared_->bytes() == 0) return;
  const size_t kept = shared_bytes_ <= kOwnBytes ? 0 : (shared_bytes_ - 1) / kOwnBytes * kOwnBytes;
  if (kept > 0 && shared_bytes_ + kOwnBytes >= shared_->bytes()) return;
  const size_t given = shared_->bytes() - kept;
  const size_t behind = std::min(given, shared_->behind.bytes());
  shared_->behind.Give(behind);
  shared_->all.Give(given - behind);
}

bool ResponseBuffer::Push(OutputEvent event) {
  const auto [own, shared] = ChargeOf(event);
  Ready ready;
  {
    std::lock_guard lock(mutex_);
    if (finished_ || abandoned_) return true;
    if (empty()) progress_ = clock_.Now();
    // One event always fits an empty buffer: no reader could have been fast enough for it. That of
    // a prompt with log-probabilities may be of megabytes.
    if (!empty() && bytes_ + own > kMaxBytes) return false;
    if ((!empty() || event.echo) && !TakeShared(shared_bytes_ + shared)) return false;
    if (empty()) ready = ready_;
    bytes_ += own;
    shared_bytes_ += shared;
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
    const auto [own, shared] = ChargeOf(event);
    bytes_ += own;
    shared_bytes_ += shared;
    events_.push_back(std::move(event));
  }
  if (was_empty && ready && *ready) (*ready)();
  return true;
}

std::optional<OutputEvent> ResponseBuffer::Next() {
  std::lock_guard lock(mutex_);
  if (empty()) return std::nullopt;
  std::optional<OutputEvent> event(std::move(events_[first_++]));
  const auto [own, shared] = ChargeOf(*event);
  bytes_ -= own;
  shared_bytes_ -= shared;
  progress_ = clock_.Now();
  GiveShared();
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
  shared_bytes_ = 0;
  GiveShared();
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
