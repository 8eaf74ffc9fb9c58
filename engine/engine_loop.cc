#include "engine/engine_loop.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/log.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kEngine);
constexpr size_t kShownSequences = 200;
constexpr int32_t kShownCells = 512;
constexpr size_t kUnbounded = std::numeric_limits<size_t>::max();
// Forced tokens that are worth a row of several tokens. Where masks come late, steps of one token a
// row are captured graphs, and two of the tokens are sampled by rows that are in flight already.
constexpr size_t kLeastForced = 1;
constexpr size_t kLeastForcedLate = 8;

absl::Status Retriable(const char* message) {
  return WithRetryAfter(absl::UnavailableError(message), absl::Seconds(1));
}

}  // namespace

EngineLoop::EngineLoop(std::unique_ptr<Scheduler> scheduler, std::unique_ptr<Executor> executor,
                       const Clock& clock, LoopListener* listener, std::vector<EventSink*> sinks,
                       BlockEventSink* block_events)
    : scheduler_(std::move(scheduler)),
      clock_(clock),
      listener_(listener),
      sinks_(std::move(sinks)),
      block_events_(block_events),
      admissions_(kUnbounded),
      cancellations_(kUnbounded),
      executor_(std::move(executor)),
      late_masks_(executor_->info().takes_late_masks),
      mask_workers_([this] { event_.Raise(); }, late_masks_ ? kLeastForcedLate : kLeastForced) {
  executor_->OnResult([this] { event_.Raise(); });
}

EngineLoop::~EngineLoop() { Stop(); }

void EngineLoop::Stop() {
  stopping_ = true;
  event_.Raise();
  if (thread_.joinable()) thread_.join();
}

void EngineLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void EngineLoop::Admit(std::vector<Admission> admissions) {
  // First, lest the server look stalled since its last work.
  if (!busy_ && gauges_.in_inbox == 0) progress_ = clock_.Now().time_since_epoch().count();
  gauges_.in_inbox += static_cast<int32_t>(admissions.size());
  admissions_.TryPush(std::move(admissions));
  event_.Raise();
}

void EngineLoop::Cancel(uint64_t key, absl::Status why) {
  cancellations_.TryPush({key, std::move(why)});
  event_.Raise();
}

std::optional<SteadyTime> EngineLoop::BusySince() const {
  if (!busy_ && gauges_.in_inbox == 0) return std::nullopt;
  return SteadyTime(Duration(progress_.load()));
}

void EngineLoop::Run() {
  while (!stopping_) {
    TakeAdmissions();
    TakeCancellations();
    ExpireDeadlines();
    CommitResults();
    TakeMasks();
    GiveLateInputs();
    SteadyTime wake = PlanSteps().value_or(SteadyTime::max());
    GiveLateInputs();  // a step that was refused has ended everything
    if (block_events_ != nullptr) HandOutBlockEvents();
    PublishGauges();
    reporter_.Answer([this] { return MakeStatus(); });
    if (!deadlines_.empty()) wake = std::min(wake, deadlines_.begin()->first);
    event_.Wait(wake == SteadyTime::max() ? std::nullopt : std::optional(wake));
  }
  TakeAdmissions();
  std::vector<TokenEvent> events;
  scheduler_->CancelAll(Retriable("the server is shutting down"), clock_.Now(), &events);
  Route(nullptr, std::move(events));
  GiveLateInputs();
  reporter_.Answer([this] { return MakeStatus(); });
}

void EngineLoop::TakeAdmissions() {
  for (std::vector<Admission>& admissions : admissions_.TakeAll()) {
    // A request's choices do not wait for one another: all begin in time, or none does.
    const absl::Status in_time =
        CheckDeadline(*admissions.front().request, admissions.front().sequence);
    for (Admission& admission : admissions) {
      const std::shared_ptr<LiveRequest>& request = admission.request;
      if (in_time.ok() || failed_ || request->cancelled().has_value()) {
        TakeAdmission(std::move(admission));
        continue;
      }
      ++taken_;
      if (absl::IsDeadlineExceeded(in_time)) {
        request->SetCancelled(CancelReason::kDeadline);
      } else {
        request->refused = true;
      }
      SinkOf(*request).DeliverEnd(request, EndReason::kCancelled, in_time, clock_.Now());
    }
  }
}

void EngineLoop::TakeAdmission(Admission admission) {
  ++taken_;
  const std::shared_ptr<LiveRequest>& request = admission.request;
  absl::Status status;
  if (failed_) {
    status = Retriable("the device has failed");
  } else if (const auto reason = request->cancelled()) {
    // A cancellation that was sent before the request was known here has found nothing.
    status = CancelStatus(*reason);
  } else {
    const TenantShare tenant = admission.sequence.tenant;
    const int32_t priority = admission.sequence.priority;
    status = scheduler_->Add(std::move(admission.sequence));
    if (status.ok()) start_rate_.Arrived(request->key, tenant.id, priority);
  }
  if (status.ok()) {
    if (request->deadline.has_value()) deadlines_.insert({*request->deadline, request->key});
    requests_.emplace(request->key, request);
    if (request->request.joint_output != nullptr && request->choice == 0) {
      request->buffer.Push({.admitted = true});
    }
  } else {
    SinkOf(*request).DeliverEnd(request, EndReason::kCancelled, std::move(status), clock_.Now());
  }
}

// Refuses at once what would only expire in the queue.
absl::Status EngineLoop::CheckDeadline(const LiveRequest& request,
                                       const SequenceRequest& sequence) const {
  if (!request.deadline.has_value()) return absl::OkStatus();
  const Duration left = *request.deadline - clock_.Now();
  if (left <= Duration::zero()) return CancelStatus(CancelReason::kDeadline);
  // The pace of a queue that has ended says nothing of what comes after it.
  if (scheduler_->stats().num_waiting == 0) return absl::OkStatus();
  return start_rate_.Check(sequence.tenant.id, sequence.priority, left);
}

void EngineLoop::TakeCancellations() {
  std::vector<TokenEvent> events;
  for (Cancellation& cancellation : cancellations_.TakeAll()) {
    scheduler_->Cancel(cancellation.key, std::move(cancellation.why), clock_.Now(), &events);
  }
  Route(nullptr, std::move(events));
}

void EngineLoop::ExpireDeadlines() {
  std::vector<TokenEvent> events;
  const SteadyTime now = clock_.Now();
  for (const auto& [deadline, key] : deadlines_) {
    if (deadline > now) break;
    requests_.at(key)->SetCancelled(CancelReason::kDeadline);
    scheduler_->Cancel(key, CancelStatus(CancelReason::kDeadline), now, &events);
  }
  Route(nullptr, std::move(events));
}

void EngineLoop::CommitResults() {
  while (std::optional<StepResult> polled = executor_->Poll()) {
    if (failed_) continue;
    auto result = std::make_shared<const StepResult>(*std::move(polled));
    if (!result->status.ok()) return Fail(result->status);
    const SteadyTime now = clock_.Now();
    progress_ = now.time_since_epoch().count();
    std::vector<TokenEvent> events;
    if (absl::Status status = scheduler_->Commit(*result, now, &events); !status.ok()) {
      return Fail(status);
    }
    StepFigures step = reporter_.OnCommit(now);
    step.as_graph = result->as_graph;
    mask_wait_.OnCommit(step.took);
    const absl::Status given = SetLateInputs();  // first: the step in flight may wait for drafts
    OrderMasks(*result, events);
    Route(result, std::move(events));
    if (!given.ok()) return Fail(given);
    listener_->OnStep(step);
  }
}

// Has the masks after the sampled tokens made, by threads of their own.
void EngineLoop::OrderMasks(const StepResult& result, const std::vector<TokenEvent>& events) {
  for (const TokenEvent& event : events) {
    if (event.end.has_value() || event.sampled.size() == 0) continue;
    const std::shared_ptr<LiveRequest>& request = requests_.at(event.id);
    if (!request->masked()) continue;
    mask_wait_.OnOrder(clock_.Now());
    mask_workers_.Order(request, result.tokens[event.sampled.begin].token);
  }
}

void EngineLoop::TakeMasks() {
  std::vector<TokenEvent> events;
  const SteadyTime now = clock_.Now();
  for (MaskWorkers::Made& made : mask_workers_.TakeAll()) {
    mask_wait_.OnMade();
    if (!made.forced.empty()) Force(made, now);
    if (!made.status.ok()) {
      scheduler_->Cancel(made.key, std::move(made.status), now, &events);
    } else if (made.complete) {
      scheduler_->Complete(made.key, now, &events);
    } else {
      if (mask_wait_.HoldsUp(made.took)) scheduler_->AwaitMasks(made.key);
      scheduler_->SetMask(made.key, std::move(made.mask));
    }
  }
  Route(nullptr, std::move(events));
}

// Gives steps in flight the masks and drafts that they wait for, of sequences that have ended, too.
//
// Once the engine has failed some may be of a plan that the executor refused, which waits for none.
// Given together they would be refused with those of steps in flight, which would never end.
absl::Status EngineLoop::SetLateInputs() {
  std::vector<LateMask> masks = scheduler_->TakeLateMasks();
  std::vector<LateDraft> drafts = scheduler_->TakeLateDrafts();
  if (failed_) {
    for (const LateMask& mask : masks) (void)executor_->SetMasks({mask});
    for (const LateDraft& draft : drafts) (void)executor_->SetDrafts({draft});
    return absl::OkStatus();
  }
  absl::Status status;
  if (!masks.empty()) status = executor_->SetMasks(std::move(masks));
  if (status.ok() && !drafts.empty()) status = executor_->SetDrafts(std::move(drafts));
  return status;
}

void EngineLoop::GiveLateInputs() {
  if (absl::Status status = SetLateInputs(); !status.ok()) Fail(status);
}

// Its tokens go to whoever reads as those of a step do.
void EngineLoop::Force(const MaskWorkers::Made& made, SteadyTime now) {
  auto result = std::make_shared<StepResult>();
  for (const Token token : made.forced) result->tokens.push_back({.token = token});
  std::vector<TokenEvent> events;
  scheduler_->Force(made.key, made.forced, now, &events);
  Route(result, std::move(events));
}

std::optional<SteadyTime> EngineLoop::PlanSteps() {
  while (!failed_ && SinksHaveCapacity()) {
    const SteadyTime now = clock_.Now();
    if (!late_masks_) {
      if (const auto until = mask_wait_.Until(now)) return until;
    }
    if (const SteadyTime from = scheduler_->PlanFrom(); now < from) return from;
    std::optional<StepPlan> plan = scheduler_->Plan(now);
    if (!plan.has_value()) break;
    int64_t tokens = 0;
    for (const StepRow& row : plan->rows) tokens += row.num_tokens;
    kLog.Debug("a step of ", plan->rows.size(), " sequences, ", tokens, " tokens");
    reporter_.OnSubmit(now, tokens, plan->rows.size());
    mask_wait_.OnSubmit(std::any_of(plan->logits.begin(), plan->logits.end(),
                                    [](const auto& wanted) { return wanted.mask != nullptr; }));
    if (absl::Status status = executor_->Submit(*std::move(plan)); !status.ok()) Fail(status);
  }
  return std::nullopt;
}

void EngineLoop::PublishGauges() {
  const SchedulerStats stats = scheduler_->stats();
  const bool busy = scheduler_->HasWork() && !failed_;
  if (busy && !busy_) progress_ = clock_.Now().time_since_epoch().count();
  busy_ = busy;
  if (const int64_t before = std::exchange(preemptions_, stats.preemptions);
      before < stats.preemptions) {
    kLog.Debug("preempted ", stats.preemptions - before, " sequences: the KV cache is full");
  }
  gauges_.running = stats.num_running;
  gauges_.waiting = stats.num_waiting;
  gauges_.blocks_held = stats.blocks_held;
  gauges_.in_inbox -= std::exchange(taken_, 0);
  listener_->OnIteration(stats);
}

void EngineLoop::HandOutBlockEvents() {
  std::vector<BlockEvent> events = scheduler_->TakeBlockEvents();
  if (!events.empty()) block_events_->OnBlocks(std::move(events));
}

bool EngineLoop::Report(std::function<void(EngineStatus)> done) {
  if (!reporter_.Ask(std::move(done))) return false;
  event_.Raise();
  return true;
}

EngineStatus EngineLoop::MakeStatus() const {
  EngineStatus status;
  status.now = clock_.Now();
  status.stats = scheduler_->stats();
  status.arriving = gauges_.in_inbox;
  SchedulerStatus scheduler = scheduler_->Status(kShownSequences, kShownCells);
  for (const SequenceStatus& sequence : scheduler.sequences) {
    const auto found = requests_.find(sequence.id);
    if (found == requests_.end()) continue;
    status.requests.push_back({found->second->request.id, found->second->choice, sequence});
  }
  status.cells = std::move(scheduler.cells);
  return status;
}

// The executor is of no more use, and neither is what the scheduler thinks is in flight: everything
// ends.
void EngineLoop::Fail(const absl::Status& status) {
  if (failed_.exchange(true)) return;
  kLog.Error("the device has failed: ", status.ToString());
  std::vector<TokenEvent> events;
  scheduler_->CancelAll(Retriable("the device has failed"), clock_.Now(), &events);
  Route(nullptr, std::move(events));
  listener_->OnDeviceFailure(status);
}

EventSink& EngineLoop::SinkOf(const LiveRequest& request) {
  return *sinks_[SinkIndex(request, sinks_.size())];
}

void EngineLoop::Route(const std::shared_ptr<const StepResult>& result,
                       std::vector<TokenEvent> events) {
  if (events.empty()) return;
  const SteadyTime now = clock_.Now();
  std::vector<std::vector<RoutedEvent>> routed(sinks_.size());
  for (TokenEvent& event : events) {
    const auto found = requests_.find(event.id);
    std::vector<RoutedEvent>& of_sink = routed[SinkIndex(*found->second, sinks_.size())];
    if (event.sampled.size() > 0) start_rate_.Begun(event.id, now);
    if (event.end.has_value()) start_rate_.Gone(event.id);
    if (event.end.has_value()) {
      const LiveRequest& request = *found->second;
      if (request.deadline.has_value()) deadlines_.erase({*request.deadline, request.key});
      of_sink.push_back({std::move(found->second), std::move(event)});
      requests_.erase(found);
    } else {
      of_sink.push_back({found->second, std::move(event)});
    }
  }
  for (size_t i = 0; i < sinks_.size(); ++i) {
    if (!routed[i].empty()) sinks_[i]->Deliver(result, std::move(routed[i]), now);
  }
}

bool EngineLoop::SinksHaveCapacity() {
  return std::all_of(sinks_.begin(), sinks_.end(),
                     [](EventSink* sink) { return sink->HasCapacity(); });
}

}  // namespace millrace
