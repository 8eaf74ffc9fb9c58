// The engine thread: it owns the scheduler and is the only one to talk to the executor.
#ifndef MILLRACE_ENGINE_ENGINE_LOOP_H_
#define MILLRACE_ENGINE_ENGINE_LOOP_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/event.h"
#include "engine/block_event_sink.h"
#include "engine/constraints/mask_wait.h"
#include "engine/event_sink.h"
#include "engine/live_request.h"
#include "engine/mask_workers.h"
#include "engine/metrics/status_reporter.h"
#include "engine/start_rate.h"
#include "executors/executor.h"
#include "scheduler/scheduler.h"

namespace millrace {

// A request that the text pool has made ready.
struct Admission {
  std::shared_ptr<LiveRequest> request;
  SequenceRequest sequence;  // its id is the request's key
};

// Counters of the loop, read by other threads. Each number is right by itself.
struct LoopGauges {
  std::atomic<int32_t> running = 0;
  std::atomic<int32_t> waiting = 0;   // in the scheduler
  std::atomic<int32_t> in_inbox = 0;  // admitted, and not yet in the scheduler
  std::atomic<int32_t> blocks_held = 0;
};

// Receives news of the loop. Called from the engine thread; must not block.
class LoopListener {
 public:
  virtual ~LoopListener() = default;

  // Called when the loop has nothing left to do and is about to sleep.
  virtual void OnIteration(const SchedulerStats& stats) = 0;

  // Called when a step was committed.
  virtual void OnStep(const StepFigures& step) = 0;

  // Called once, when the device has failed and every request has got its end.
  virtual void OnDeviceFailure(const absl::Status& status) = 0;
};

class EngineLoop {
 public:
  // A request's events go to the sink that its key selects, those of the prefix cache to
  // `block_events`, which is null where the scheduler makes none. All pointers must outlive the
  // loop.
  EngineLoop(std::unique_ptr<Scheduler> scheduler, std::unique_ptr<Executor> executor,
             const Clock& clock, LoopListener* listener, std::vector<EventSink*> sinks,
             BlockEventSink* block_events = nullptr);
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;
  // Stops, and waits for the steps in flight.
  ~EngineLoop();

  void Start();
  // Ends what is alive, Unavailable; what is admitted from then on is never answered. Idempotent.
  void Stop();

  // Hands sequences to the engine thread. Any thread may call it, and none waits. Every admission
  // gets an event with `end`. No step is planned with only some of `admissions`: a request's
  // choices share the prefill of their prompt.
  void Admit(std::vector<Admission> admissions);
  // Ends a request that was admitted, or is about to be.
  void Cancel(uint64_t key, absl::Status why);
  void Wake() { event_.Raise(); }
  // Asks for the status (Engine::Report).
  bool Report(std::function<void(EngineStatus)> done);

  const LoopGauges& gauges() const { return gauges_; }
  bool failed() const { return failed_; }

  // Returns the time since which there is work and no step has finished; nothing when there is no
  // work.
  std::optional<SteadyTime> BusySince() const;

 private:
  struct Cancellation {
    uint64_t key;
    absl::Status why;
  };
  using Deadline = std::pair<SteadyTime, uint64_t>;

  void Run();
  void TakeAdmissions();
  void TakeAdmission(Admission admission);
  absl::Status CheckDeadline(const LiveRequest& request, const SequenceRequest& sequence) const;
  void TakeCancellations();
  void ExpireDeadlines();
  void CommitResults();
  void OrderMasks(const StepResult& result, const std::vector<TokenEvent>& events);
  void TakeMasks();
  // Returns why the executor refused them.
  absl::Status SetLateInputs();
  void GiveLateInputs();
  void Force(const MaskWorkers::Made& made, SteadyTime now);
  // Returns when to try again; nullopt: when something has happened.
  std::optional<SteadyTime> PlanSteps();
  void PublishGauges();
  void HandOutBlockEvents();
  EngineStatus MakeStatus() const;
  void Fail(const absl::Status& status);
  void Route(const std::shared_ptr<const StepResult>& result, std::vector<TokenEvent> events);
  EventSink& SinkOf(const LiveRequest& request);
  bool SinksHaveCapacity();

  const std::unique_ptr<Scheduler> scheduler_;
  const Clock& clock_;
  LoopListener* const listener_;
  const std::vector<EventSink*> sinks_;
  BlockEventSink* const block_events_;  // null: nobody wants them

  // From other threads. Bounded by the number of live requests, which admission bounds: one
  // admission and at most two cancellations each.
  BoundedQueue<std::vector<Admission>> admissions_;
  BoundedQueue<Cancellation> cancellations_;
  Event event_;
  std::atomic<bool> stopping_ = false;

  const std::unique_ptr<Executor> executor_;  // raises event_

  // To other threads.
  LoopGauges gauges_;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> busy_ = false;
  std::atomic<Duration::rep> progress_ = 0;  // when the last step finished, or work came

  // The engine thread's.
  absl::flat_hash_map<uint64_t, std::shared_ptr<LiveRequest>> requests_;
  absl::btree_set<Deadline> deadlines_;  // of those in requests_ that have one
  StatusReporter reporter_;              // but for its Ask
  StartRate start_rate_;
  int32_t taken_ = 0;        // admissions since the gauges were last published
  int64_t preemptions_ = 0;  // when they were
  const bool late_masks_;    // the executor takes them: planning waits for none
  MaskWait mask_wait_;
  MaskWorkers mask_workers_;  // raise event_

  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_ENGINE_LOOP_H_
