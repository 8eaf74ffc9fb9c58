// The threads between the engine and the answers: they do all text work on what was sampled.
#ifndef MILLRACE_ENGINE_OUTPUT_SHARD_H_
#define MILLRACE_ENGINE_OUTPUT_SHARD_H_

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/bounded_queue.h"
#include "engine/event_sink.h"
#include "engine/live_request.h"
#include "scheduler/token_event.h"

namespace millrace {

// Receives what an output shard has for the rest of the engine. Called from the shards' threads;
// must not block.
class ShardListener {
 public:
  virtual ~ShardListener() = default;

  // The answer is complete, or its reader too slow: no more tokens are wanted. An event with `end`
  // must still follow.
  virtual void OnNoMoreWanted(const std::shared_ptr<LiveRequest>& request, absl::Status why) = 0;

  // A token of the answer, so long after the one before it; nothing: the first one, so long after
  // the request's arrival. Not called for tokens after a stop string.
  virtual void OnToken(const LiveRequest& request, std::optional<Duration> since_previous,
                       Duration since_arrival) = 0;

  // A request's last event, to be delivered. `end.generated_tokens` are those that the answer
  // counts.
  virtual void OnFinish(const std::shared_ptr<LiveRequest>& request, OutputEvent last,
                        const SequenceEnd& end) = 0;

  // The end of a batch's input: its embedding, or none where `end` has an error.
  virtual void OnEmbedded(const std::shared_ptr<LiveRequest>& request,
                          absl::Span<const float> embedding, const SequenceEnd& end) = 0;

  // The shard is no longer far behind.
  virtual void OnCapacity() = 0;
};

// One thread that turns steps' results into events, and its queue.
class OutputShard final : public EventSink {
 public:
  explicit OutputShard(ShardListener* listener);
  OutputShard(const OutputShard&) = delete;
  OutputShard& operator=(const OutputShard&) = delete;
  // Works off what is queued, then ends.
  ~OutputShard() override;

  void Deliver(std::shared_ptr<const StepResult> result, std::vector<RoutedEvent> events,
               SteadyTime when) override;
  // False while the shard is far behind; then OnCapacity will be called.
  bool HasCapacity() override;

 private:
  struct Batch {
    std::shared_ptr<const StepResult> result;
    std::vector<RoutedEvent> events;
    SteadyTime when;
  };

  void Run();
  void Process(const StepResult& result, SteadyTime when, const RoutedEvent& routed);
  void AddSampled(const StepResult& result, SteadyTime when, const RoutedEvent& routed,
                  OutputEvent* output);
  void End(const std::shared_ptr<LiveRequest>& request, SequenceEnd end, OutputEvent output);
  void Push(const std::shared_ptr<LiveRequest>& request, OutputEvent event);
  static Finish MakeFinish(const LiveRequest& request, const SequenceEnd& end);

  ShardListener* const listener_;
  BoundedQueue<Batch> queue_;
  std::atomic<bool> engine_waits_ = false;
  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_OUTPUT_SHARD_H_
