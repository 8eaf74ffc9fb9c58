#include "server/http/transport/place_queue.h"

#include <iterator>
#include <utility>

namespace millrace {

PlaceQueue::Ticket::Ticket(PlaceQueue& queue, uint32_t lane, Wake wake)
    : queue_(queue), lane_(lane) {
  const std::lock_guard lock(queue_.mutex_);
  std::list<Wake>& waiting = queue_.lanes_[lane_];
  at_ = waiting.insert(waiting.end(), std::move(wake));
  ++queue_.size_;
}

PlaceQueue::Ticket::~Ticket() {
  Wake next;
  {
    const std::lock_guard lock(queue_.mutex_);
    const auto lane = queue_.lanes_.find(lane_);
    std::list<Wake>& waiting = lane->second;
    const bool was_first = at_ == waiting.begin();
    waiting.erase(at_);
    --queue_.size_;
    if (waiting.empty()) {
      queue_.lanes_.erase(lane);
    } else if (was_first) {
      next = waiting.front();
    }
  }
  if (next) next();
}

bool PlaceQueue::Ticket::is_first() const {
  const std::lock_guard lock(queue_.mutex_);
  return queue_.lanes_.find(lane_)->second.begin() == at_;
}

bool PlaceQueue::has_waiting(uint32_t lane) const {
  const std::lock_guard lock(mutex_);
  return lanes_.find(lane) != lanes_.end();
}

}  // namespace millrace
