// The bounded queue of one answer's events, between the engine's threads and the endpoint that
// reads it.
#ifndef MILLRACE_ENGINE_RESPONSE_BUFFER_H_
#define MILLRACE_ENGINE_RESPONSE_BUFFER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/request.h"

namespace millrace {

// Thread-safe. Nothing here waits.
class ResponseBuffer {
 public:
  // The most that may lie unread, in bytes of text, tokens and log-probabilities, beside an echoed
  // prompt.
  static constexpr size_t kMaxBytes = 1 << 20;

  // `ready` is called without a lock each time the buffer goes from empty to not empty, and let go
  // after the last event or Abandon.
  ResponseBuffer(const Clock& clock, std::function<void()> ready)
      : clock_(clock), ready_(std::make_shared<const std::function<void()>>(std::move(ready))) {}
  ResponseBuffer(const ResponseBuffer&) = delete;
  ResponseBuffer& operator=(const ResponseBuffer&) = delete;

  // Adds an event. Returns false if the reader is too slow; the event is then lost. Events after
  // Finish are ignored.
  bool Push(OutputEvent event);

  // Adds the last event; it always fits. Returns false if there was one already; this one is then
  // ignored.
  bool Finish(OutputEvent event);

  std::optional<OutputEvent> Next();

  // Drops the events and ignores later ones: Next will not be called again.
  void Abandon();

  bool finished() const;

  // Returns when the reader last took an event, or when the first unread one was added to the empty
  // buffer, whichever is later. Returns nothing while there is nothing to read.
  std::optional<SteadyTime> UnreadSince() const;

 private:
  // Shared, so that a push takes a reference and no copy, which would allocate for each token.
  using Ready = std::shared_ptr<const std::function<void()>>;

  bool empty() const { return first_ == events_.size(); }

  const Clock& clock_;
  mutable std::mutex mutex_;
  // All that follows is guarded by mutex_, but that *ready_ is called without it.
  Ready ready_;
  std::vector<OutputEvent> events_;  // those before first_ were read
  size_t first_ = 0;
  size_t bytes_ = 0;
  SteadyTime progress_;
  bool finished_ = false;
  bool abandoned_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_RESPONSE_BUFFER_H_
