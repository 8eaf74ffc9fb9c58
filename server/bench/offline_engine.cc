#include "server/bench/offline_engine.h"

#include <utility>

#include "base/status.h"
#include "scheduler/scheduler.h"

namespace millrace {

absl::StatusOr<std::unique_ptr<OfflineEngine>> OfflineEngine::Create(
    std::unique_ptr<Executor> executor, bool prefix_caching) {
  MILLRACE_ASSIGN_OR_RETURN(
      std::unique_ptr<Scheduler> scheduler,
      Scheduler::Create({.limits = executor->info().limits, .prefix_caching = prefix_caching}));
  return std::unique_ptr<OfflineEngine>(
      new OfflineEngine(std::move(scheduler), std::move(executor), prefix_caching));
}

OfflineEngine::OfflineEngine(std::unique_ptr<Scheduler> scheduler,
                             std::unique_ptr<Executor> executor, bool prefix_caching)
    : info_(executor->info()),
      executor_(*executor),
      defaults_({.limits = info_.limits,
                 .prefix_caching = prefix_caching,
                 .cache_root = CacheRoot({info_.digest, info_.kv_type})}),
      loop_(std::move(scheduler), std::move(executor), clock_, this, {this}) {
  loop_.Start();
}

absl::StatusOr<std::vector<Admission>> OfflineEngine::MakeAdmissions(const OfflineBatch& batch) {
  GenerateRequest generate;
  generate.max_tokens = batch.new_tokens;
  generate.temperature = batch.temperature;
  generate.ignore_eos = true;
  std::vector<Admission> admissions;
  for (const std::vector<Token>& prompt : batch.prompts) {
    auto request = std::make_shared<LiveRequest>(clock_, GenerateRequest(), [] {});
    request->key = ++last_key_;
    generate.seed = request->key;
    MILLRACE_ASSIGN_OR_RETURN(SequenceRequest sequence, MakeSequence(generate, prompt, defaults_));
    sequence.id = request->key;
    sequence.arrival = request->arrival;
    admissions.push_back({std::move(request), std::move(sequence)});
  }
  return admissions;
}

absl::StatusOr<OfflineRun> OfflineEngine::Generate(const OfflineBatch& batch) {
  // No step is in flight between two batches.
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<MixtureUse> used, executor_.MixtureUses());
  const SteadyTime begin = clock_.Now();
  MILLRACE_ASSIGN_OR_RETURN(std::vector<Admission> admissions, MakeAdmissions(batch));
  if (admissions.empty()) return absl::InvalidArgumentError("the batch has no prompts");
  SchedulerStats before;
  {
    std::lock_guard lock(mutex_);
    running_ = true;
    batch_size_ = unfinished_ = static_cast<int32_t>(admissions.size());
    sampled_ = 0;
    run_ = {};
    status_ = absl::OkStatus();
    before = stats_;
  }
  loop_.Admit(std::move(admissions));
  done_.Wait();
  const SteadyTime end = clock_.Now();

  std::lock_guard lock(mutex_);
  MILLRACE_RETURN_IF_ERROR(status_);
  MILLRACE_ASSIGN_OR_RETURN(run_.mixtures, executor_.MixtureUses());
  for (size_t i = 0; i < used.size(); ++i) run_.mixtures[i].touched -= used[i].touched;
  run_.wall = end - begin;
  run_.prefix_hits = stats_.prefix_hits - before.prefix_hits;
  run_.preemptions = stats_.preemptions - before.preemptions;
  return run_;
}

void OfflineEngine::Deliver(std::shared_ptr<const StepResult>, std::vector<RoutedEvent> events,
                            SteadyTime) {
  std::lock_guard lock(mutex_);
  for (const RoutedEvent& routed : events) {
    if (routed.event.sampled.size() > 0) ++sampled_;
    if (!routed.event.end.has_value()) continue;
    --unfinished_;
    if (status_.ok()) status_ = routed.event.end->status;
  }
}

void OfflineEngine::OnStep(const StepFigures& step) {
  std::lock_guard lock(mutex_);
  if (step.tokens == batch_size_ && sampled_ == batch_size_) {
    if (run_.whole_steps++ == 0) run_.first_whole_step = run_.steps;
  }
  ++run_.steps;
  sampled_ = 0;
}

// The end is not told by Deliver: the last step is counted, and its statistics known, only now.
void OfflineEngine::OnIteration(const SchedulerStats& stats) {
  std::lock_guard lock(mutex_);
  stats_ = stats;
  if (!running_) return;
  if (unfinished_ == 0) {
    running_ = open_ = false;
    done_.Raise();
  } else if (!open_ && stats.num_waiting == unfinished_) {
    open_ = true;
    loop_.Wake();
  }
}

void OfflineEngine::OnDeviceFailure(const absl::Status& status) {
  std::lock_guard lock(mutex_);
  status_ = status;
}

}  // namespace millrace
