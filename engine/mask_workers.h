// Threads that follow the grammars of answers: from a sampled token to the mask of the next one.
#ifndef MILLRACE_ENGINE_MASK_WORKERS_H_
#define MILLRACE_ENGINE_MASK_WORKERS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/bounded_queue.h"
#include "base/clock.h"
#include "engine/live_request.h"
#include "scheduler/step_plan.h"

namespace millrace {

// Order and TakeAll are called by the engine thread. The threads start with the first order. A
// request has at most one order at a time, since its next token waits for the mask.
class MaskWorkers {
 public:
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
  MaskWorkers(std::function<void()> wake, size_t least_forced);
  MaskWorkers(const MaskWorkers&) = delete;
  MaskWorkers& operator=(const MaskWorkers&) = delete;
  ~MaskWorkers();

  // Has `token` followed by the request's matcher, and the mask after it made.
  void Order(std::shared_ptr<LiveRequest> request, Token token);
  std::deque<Made> TakeAll() { return made_.TakeAll(); }

 private:
  struct Job {
    std::shared_ptr<LiveRequest> request;
    Token token = 0;
    SteadyTime ordered;
  };
  void Run();
  Made Follow(LiveRequest& request, Token token) const;

  const std::function<void()> wake_;
  const size_t least_forced_;
  BoundedQueue<Job> jobs_;  // both are bounded by the live requests
  BoundedQueue<Made> made_;
  std::vector<std::thread> threads_;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_MASK_WORKERS_H_
