// Remembers an engine's last steps, and answers who asks for its status.
#ifndef MILLRACE_ENGINE_METRICS_STATUS_REPORTER_H_
#define MILLRACE_ENGINE_METRICS_STATUS_REPORTER_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include "base/bounded_queue.h"
#include "engine/metrics/engine_status.h"
#include "engine/metrics/metrics.h"

namespace millrace {

// The engine thread's, but for Ask.
class StatusReporter {
 public:
  // Asks for a status, from any thread; `done` is called on the engine thread and must not block.
  // Returns false, and calls nothing, if a few others have asked and not been answered.
  bool Ask(std::function<void(EngineStatus)> done) {
    return asked_.TryPush(std::move(done)) == PushResult::kPushed;
  }

  void OnSubmit(SteadyTime now, int64_t tokens, size_t sequences);
  // Called when the oldest step in flight was committed, which began when the one before it ended,
  // if it was submitted before. Returns its figures.
  StepFigures OnCommit(SteadyTime now);

  // Answers those who asked with what `make` returns, which is not called if there are none, and
  // with the steps.
  void Answer(const std::function<EngineStatus()>& make);

 private:
  struct Submitted {
    SteadyTime at;
    int64_t tokens;
    int32_t sequences;
  };

  BoundedQueue<std::function<void(EngineStatus)>> asked_{4};
  std::deque<Submitted> in_flight_;
  std::array<StepRecord, 256> steps_;  // a ring
  uint64_t num_steps_ = 0;             // ever; the next one's place, modulo the ring's size
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_METRICS_STATUS_REPORTER_H_
