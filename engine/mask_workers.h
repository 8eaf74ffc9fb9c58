// Threads that follow the grammars of answers: from a sampled token to the mask of the next one.
#ifndef MILLRACE_ENGINE_MASK_WORKERS_H_
#define MILLRACE_ENGINE_MASK_WORKERS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/bounded_queue.h"
#include "base/clock.h"
#include "engine/live_request.h"
#include "engine/text/text_pool.h"
#include "plan/step_plan.h"

namespace millrace {

// Order and TakeAll are called by the engine thread. The threads start with the first order. A
// request has at most one order at a time, since its next token waits for the mask. Tenants take
// turns, by the time that their masks take.
class MaskWorkers {
 public:
  struct Threads {
    int ordinary;
    int spare;  // for a tenant of which no mask is being made, while the others are busy
  };
  struct Made {
    uint64_t key = 0;           // the request's
    absl::Status status;        // not OK: the answer cannot go on
    bool complete = false;      // the answer is complete, and nothing may follow
    std::vector<Token> forced;  // tokens that come next, before what `complete` and `mask` say
    std::shared_ptr<const SampleMask> mask;
    Duration took{};  // since it was ordered
  };

  // `wake` is called whenever something was made, by a worker; it must not block. So many forced
  // tokens or more are handed out at once, fewer sampled under masks that allow no others.
  MaskWorkers(std::function<void()> wake, size_t least_forced, Threads threads = DefaultThreads());
  MaskWorkers(const MaskWorkers&) = delete;
  MaskWorkers& operator=(const MaskWorkers&) = delete;

  // Has `token` followed by the request's matcher, and the mask after it made.
  void Order(std::shared_ptr<LiveRequest> request, Token token);
  std::deque<Made> TakeAll() { return made_.TakeAll(); }

 private:
  static Threads DefaultThreads();
  void Run(LiveRequest& request, Token token, SteadyTime ordered);
  Made Follow(LiveRequest& request, Token token) const;

  const std::function<void()> wake_;
  const size_t least_forced_;
  const Threads threads_;
  BoundedQueue<Made> made_;       // bounded by the live requests, as is what waits in the pool
  std::optional<TextPool> pool_;  // its threads use what stands above
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_MASK_WORKERS_H_
