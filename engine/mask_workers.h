// Threads that follow the grammars of answers: from a sampled token to the mask of the next one.
#ifndef MILLRACE_ENGINE_MASK_WORKERS_H_
#define MILLRACE_ENGINE_MASK_WORKERS_H_

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
    uint64_t key = 0;       // the request's
    absl::Status status;    // not OK: the answer cannot go on
    bool complete = false;  // the answer is complete, and nothing may follow
    std::shared_ptr<const SampleMask> mask;
    Duration took{};  // since it was ordered
  };

  // `wake` is called whenever something was made, by a worker; it must not block.
  explicit MaskWorkers(std::function<void()> wake);
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
  static Made Follow(LiveRequest& request, Token token);

  const std::function<void()> wake_;
  BoundedQueue<Job> jobs_;  // both are bounded by the live requests
  BoundedQueue<Made> made_;
  std::vector<std::thread> threads_;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_MASK_WORKERS_H_
