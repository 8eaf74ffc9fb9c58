// The bounded queue of one answer's events, between the engine's threads and the endpoint that
// reads it.
#ifndef MILLRACE_ENGINE_ANSWER_RESPONSE_BUFFER_H_
#define MILLRACE_ENGINE_ANSWER_RESPONSE_BUFFER_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/tenant_budget.h"
#include "engine/request/request.h"

namespace millrace {

// The memory that the buffers of one model share.
struct UnreadBudgets {
  // `limit` bytes each, of which TenantBudget says who may have how much.
  explicit UnreadBudgets(size_t limit)
      : all("the unread answers", limit), behind("the answers whose readers are behind", limit) {}

  TenantBudget all;
  // For readers that do take something, once `all` has no more for them.
  TenantBudget behind;
};

// Thread-safe. Nothing here waits.
class ResponseBuffer {
 public:
  // The most that may lie unread, in bytes of text, tokens and log-probabilities, beside an echoed
  // prompt.
  static constexpr size_t kMaxBytes = 1 << 20;
  // Unread bytes beyond these, an echoed prompt's included, are charged to the budgets that buffers
  // share, in pieces of as many.
  static constexpr size_t kOwnBytes = 16 << 10;
  // A reader that has taken nothing for so long has no part in the second of these budgets.
  static constexpr Duration kSilence = std::chrono::seconds(5);

  // `ready` is called without a lock each time the buffer goes from empty to not empty, and let go
  // after the last event or Abandon.
  ResponseBuffer(const Clock& clock, std::function<void()> ready)
      : clock_(clock), ready_(std::make_shared<const std::function<void()>>(std::move(ready))) {}
  ResponseBuffer(const ResponseBuffer&) = delete;
  ResponseBuffer& operator=(const ResponseBuffer&) = delete;

  // Has the buffer share `budgets` with others, in the name of `tenant`. Call before Push.
  void ShareBudgets(std::shared_ptr<UnreadBudgets> budgets, const std::string& tenant);

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
  // Takes what `bytes` need of the shared budgets. Returns false if there is none for this reader.
  bool TakeShared(size_t bytes);
  // Gives back what `shared_bytes_` no longer need.
  void GiveShared();

  const Clock& clock_;
  mutable std::mutex mutex_;
  // All that follows is guarded by mutex_, but that *ready_ is called without it.
  Ready ready_;
  std::vector<OutputEvent> events_;  // those before first_ were read
  size_t first_ = 0;
  size_t bytes_ = 0;         // unread, of kMaxBytes
  size_t shared_bytes_ = 0;  // unread, an echoed prompt included
  SteadyTime progress_;
  bool finished_ = false;
  bool abandoned_ = false;
  // The parts of the shared budgets that this buffer holds.
  struct Shares {
    Shares(UnreadBudgets& budgets, const std::string& tenant)
        : all(budgets.all, tenant), behind(budgets.behind, tenant) {}
    size_t bytes() const { return all.bytes() + behind.bytes(); }

    TenantBudget::Share all;
    TenantBudget::Share behind;
  };
  std::shared_ptr<UnreadBudgets> budgets_;  // null: none are shared
  std::optional<Shares> shared_;            // of budgets_
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_ANSWER_RESPONSE_BUFFER_H_
