// How long a request is likely to wait for its first token, by how fast its tenant's queue moved.
#ifndef MILLRACE_ENGINE_START_RATE_H_
#define MILLRACE_ENGINE_START_RATE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/clock.h"

namespace millrace {

// The payload of a status whose HTTP status is another than its code has.
inline constexpr char kHttpStatusUrl[] = "millrace/http-status";

// Used by one thread, which knows all sequences of an engine. A function of the calls alone.
class StartRate {
 public:
  // A sequence waits for its first token from now on.
  void Arrived(uint64_t key, uint32_t tenant, int32_t priority);
  // It has got it. Does nothing if it had before.
  void Begun(uint64_t key, SteadyTime now);
  // It has ended. Does nothing if it has begun.
  void Gone(uint64_t key);

  // Returns about how long a sequence that came now would wait behind those of its tenant with the
  // same priority or a better one. Nothing: too little was measured, none waits, or those that wait
  // have not moved yet (an earlier queue's pace says nothing of them).
  std::optional<Duration> Wait(uint32_t tenant, int32_t priority) const;

  // Returns ResourceExhausted, for HTTP 503, with when to try again, if a sequence that must begin
  // within `left` would most likely not.
  absl::Status Check(uint32_t tenant, int32_t priority, Duration left) const;

 private:
  struct Queue {
    std::map<int32_t, int64_t> waiting;  // by priority
    int64_t num_waiting = 0;
    std::optional<SteadyTime> last_begun;  // if some waited from then on
    int64_t samples = 0;
    double seconds = 0;  // between one first token and the next, on average
    bool moves = false;  // the queue that waits now has made a sample
  };

  void Remove(uint64_t key);

  absl::flat_hash_map<uint64_t, std::pair<uint32_t, int32_t>> waiting_;  // by key
  absl::flat_hash_map<uint32_t, Queue> queues_;                          // by tenant
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_START_RATE_H_
