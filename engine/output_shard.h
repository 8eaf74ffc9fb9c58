// Output shards: worker threads that turn sampled tokens into the text and events of responses.
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

// The calls that an output shard makes to the rest of the engine. They come from the shards'
// threads and must not block.
class ShardListener {
 public:
  virtual ~ShardListener() = default;

  // Called when no more tokens are wanted: the answer is complete, or its reader too slow. An event
  // with `end` must still follow.
  virtual void OnNoMoreWanted(const std::shared_ptr<LiveRequest>& request, absl::Status why) = 0;

  // Called for each token of the answer up to a stop string. `since_previous` is absent for the
  // first token.
  virtual void OnToken(const LiveRequest& request, std::optional<Duration> since_previous,
                       Duration since_arrival) = 0;

  // Called with a request's last event, which the listener delivers. `end.generated_tokens` are
  // those that the answer counts.
  virtual void OnFinish(const std::shared_ptr<LiveRequest>& request, OutputEvent last,
                        const SequenceEnd& end) = 0;

  // Called at the end of an input of a batch, with its embedding, or an empty one if `end` has an
  // error.
  virtual void OnEmbedded(const std::shared_ptr<LiveRequest>& request,
                          absl::Span<const float> embedding, const SequenceEnd& end) = 0;

  // Called when HasCapacity is true again after it was false.
  virtual void OnCapacity() = 0;
};

// A worker thread with its queue: it detokenizes the tokens of steps' results, matches stop
// strings, and pushes the events into each request's buffer. An engine has several, and each
// request belongs to one. (A weight's shard, executors/ops.h, is another thing.)
class OutputShard final : public EventSink {
 public:
  explicit OutputShard(ShardListener* listener);
  OutputShard(const OutputShard&) = delete;
  OutputShard& operator=(const OutputShard&) = delete;
  // Processes what is queued, then ends the thread.
  ~OutputShard() override;

  void Deliver(std::shared_ptr<const StepResult> result, std::vector<RoutedEvent> events,
               SteadyTime when) override;
  // Returns false while the shard is far behind; OnCapacity is called when it has caught up.
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
