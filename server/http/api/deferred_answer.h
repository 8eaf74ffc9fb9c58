// An answer that one call from another thread completes.
#ifndef MILLRACE_SERVER_HTTP_API_DEFERRED_ANSWER_H_
#define MILLRACE_SERVER_HTTP_API_DEFERRED_ANSWER_H_

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "server/http/api/http_message.h"

namespace millrace {

class DeferredAnswer : public Answer {
 public:
  explicit DeferredAnswer(Wake wake) : slot_(std::make_shared<Slot>(std::move(wake))) {}

  // Gives up what the answer waits for; does nothing once it has come.
  void WhenDropped(std::function<void()> give_up) { give_up_ = std::move(give_up); }

  ~DeferredAnswer() override {
    if (give_up_) give_up_();
  }

  // Returns the function that completes the answer. It is called once, from any thread, and may
  // outlive the answer.
  std::function<void(HttpResponse)> Completer() {
    return [slot = slot_](HttpResponse response) {
      {
        std::lock_guard lock(slot->mutex);
        slot->response = std::move(response);
      }
      slot->wake();
    };
  }

  State Poll(HttpResponse& response, std::string& /*body*/) override {
    std::lock_guard lock(slot_->mutex);
    if (!slot_->response) return State::kWaiting;
    response = *std::move(slot_->response);
    return State::kWhole;
  }

 private:
  struct Slot {
    explicit Slot(Wake wake) : wake(std::move(wake)) {}
    const Wake wake;
    std::mutex mutex;
    std::optional<HttpResponse> response;  // guarded by mutex
  };
  const std::shared_ptr<Slot> slot_;
  std::function<void()> give_up_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_API_DEFERRED_ANSWER_H_
