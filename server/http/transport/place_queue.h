// The order in which large bodies wait for place in memory.
#ifndef MILLRACE_SERVER_HTTP_TRANSPORT_PLACE_QUEUE_H_
#define MILLRACE_SERVER_HTTP_TRANSPORT_PLACE_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>

#include "server/http/api/http_message.h"

namespace millrace {

// Bodies of one lane (a tenant or an address) are served in the order in which they came, so that a
// large one is not overtaken by smaller ones until its time is up. Thread-safe.
class PlaceQueue {
 public:
  // A body that waits, from the construction to the end. Then the lane's next first one is woken,
  // from the same thread.
  class Ticket {
   public:
    Ticket(PlaceQueue& queue, uint32_t lane, Wake wake);
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    ~Ticket();

    bool is_first() const;

   private:
    PlaceQueue& queue_;
    const uint32_t lane_;
    std::list<Wake>::iterator at_;
  };

  bool has_waiting(uint32_t lane) const;
  // Returns how many wait, of all lanes.
  size_t size() const { return size_; }

 private:
  mutable std::mutex mutex_;
  std::map<uint32_t, std::list<Wake>> lanes_;  // guarded by mutex_: those with bodies that wait
  std::atomic<size_t> size_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_TRANSPORT_PLACE_QUEUE_H_
