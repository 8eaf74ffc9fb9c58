// The interface through which the engine thread delivers the events of each step.
#ifndef MILLRACE_ENGINE_EVENT_SINK_H_
#define MILLRACE_ENGINE_EVENT_SINK_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "engine/live_request.h"
#include "plan/step_plan.h"
#include "scheduler/token_event.h"

namespace millrace {

// News of one sequence and whom they are for.
struct RoutedEvent {
  std::shared_ptr<LiveRequest> request;
  TokenEvent event;
};

// An output shard, or whatever else counts or shows the tokens. Called from the engine thread (and
// DeliverEnd from the text pool's too); must not wait.
class EventSink {
 public:
  virtual ~EventSink() = default;

  // Takes the events of a step. `result` holds the tokens that the events refer to, and is null
  // when they refer to none; it was committed at `when`.
  virtual void Deliver(std::shared_ptr<const StepResult> result, std::vector<RoutedEvent> events,
                       SteadyTime when) = 0;

  // Returns whether the engine may plan more; if not, it should wait for EngineLoop::Wake.
  virtual bool HasCapacity() = 0;

  // Ends a request that is no sequence: never was, or could not become one.
  void DeliverEnd(std::shared_ptr<LiveRequest> request, EndReason reason, absl::Status status,
                  SteadyTime now) {
    TokenEvent event;
    event.id = request->key;
    event.end = request->UnscheduledEnd(reason, std::move(status), now);
    std::vector<RoutedEvent> events;
    events.push_back({std::move(request), std::move(event)});
    Deliver(nullptr, std::move(events), now);
  }
};

// Returns which of so many sinks a request belongs to. Of several the last has those that score
// their prompts, each step of which takes milliseconds of its thread, so that no other's tokens
// wait for them.
inline size_t SinkIndex(const LiveRequest& request, size_t sinks) {
  if (sinks == 1) return 0;
  const bool scores = request.request.echo && request.request.logprobs.has_value();
  return scores ? sinks - 1 : request.key % (sinks - 1);
}

}  // namespace millrace

#endif  // MILLRACE_ENGINE_EVENT_SINK_H_
