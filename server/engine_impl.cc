#include "server/engine_impl.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/status.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kEngine);
constexpr Duration kWatchPeriod = std::chrono::milliseconds(250);

void LogFinish(const std::string& id, const Finish& finish) {
  const Logger log = kLog.ForRequest(id);
  const std::string error = finish.status.ok() ? "" : absl::StrCat(": ", finish.status.ToString());
  log.Info(std::string(Name(finish.reason)), error, "; prompt_tokens=", finish.usage.prompt_tokens,
           " cached_tokens=", finish.usage.cached_tokens,
           " completion_tokens=", finish.usage.completion_tokens,
           " queue=", absl::FormatDuration(finish.timings.queue),
           " prefill=", absl::FormatDuration(finish.timings.prefill),
           " decode=", absl::FormatDuration(finish.timings.decode));
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineImpl>> EngineImpl::Create(EngineOptions options,
                                                               std::unique_ptr<Executor> executor,
                                                               std::unique_ptr<const TextSet> text,
                                                               Metrics& metrics) {
  const ModelInfo& model = executor->info();
  const StepLimits& limits = model.limits;
  if (const int32_t tokens = text->tokenizer().vocab_size(); tokens > limits.vocab_size) {
    kLog.Warning("the tokenizer has ", tokens, " tokens, the model ", limits.vocab_size,
                 ": prompts with others are refused");
  }
  if (const int32_t frame = text->tokenizer().text_frame().size();
      limits.embedding_size > 0 && frame >= limits.max_model_len) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_model_len is ", limits.max_model_len, "; allowed: at least ", frame + 1,
                     ", since the tokenizer puts ", frame, " tokens around each text"));
  }
  // An encoder's tokens see what follows: a beginning is worth nothing to another text.
  if (options.prefix_caching && limits.embedding_size > 0) {
    kLog.Info("prefix-caching: off, as for every encoder");
    options.prefix_caching = false;
  }
  MILLRACE_ASSIGN_OR_RETURN(
      std::unique_ptr<Scheduler> scheduler,
      Scheduler::Create({.limits = limits, .prefix_caching = options.prefix_caching}));
  const auto of_text = text->tokenizer().end_of_generation();
  std::vector<Token> ends(of_text.begin(), of_text.end());
  ends.insert(ends.end(), model.end_tokens.begin(), model.end_tokens.end());
  ends.erase(
      std::remove_if(ends.begin(), ends.end(), [&](Token end) { return end >= limits.vocab_size; }),
      ends.end());
  SequenceDefaults defaults = {.limits = limits,
                               .prefix_caching = options.prefix_caching,
                               .cache_root = CacheRoot({model.digest, model.kv.type}),
                               .end_of_generation = std::move(ends)};
  EngineInfo info = {.model_name = options.model_name,
                     .architecture = model.architecture,
                     .created = absl::Now(),
                     .max_model_len = limits.max_model_len,
                     .vocab_size = limits.vocab_size,
                     .block_size = limits.block_size,
                     .num_blocks = limits.num_blocks,
                     .has_chat_template = text->has_chat_template(),
                     .batch_invariant = model.batch_invariant,
                     .sampling = options.sampling,
                     .embedding_size = limits.embedding_size};
  EngineMetrics& engine_metrics = metrics.AddEngine(options.model_name, limits);
  engine_metrics.SetGraphs(model.graphs, model.graphs_failed);
  return std::unique_ptr<EngineImpl>(
      new EngineImpl(std::move(options), std::move(defaults), std::move(info), std::move(scheduler),
                     std::move(executor), std::move(text), engine_metrics));
}

EngineImpl::EngineImpl(EngineOptions options, SequenceDefaults defaults, EngineInfo info,
                       std::unique_ptr<Scheduler> scheduler, std::unique_ptr<Executor> executor,
                       std::unique_ptr<const TextSet> text, EngineMetrics& metrics)
    : options_(std::move(options)),
      defaults_(std::move(defaults)),
      info_(std::move(info)),
      clock_(*options_.clock),
      text_(std::move(text)),
      metrics_(metrics) {
  std::random_device entropy;
  seed_state_ = uint64_t{entropy()} << 32 | entropy();
  for (int i = 0; i < options_.output_threads; ++i) {
    shards_.push_back(std::make_unique<OutputShard>(static_cast<ShardListener*>(this)));
  }
  std::vector<EventSink*> sinks;
  for (const std::unique_ptr<OutputShard>& shard : shards_) sinks.push_back(shard.get());
  loop_ = std::make_unique<EngineLoop>(std::move(scheduler), std::move(executor), clock_,
                                       static_cast<LoopListener*>(this), std::move(sinks));
  loop_->Start();
  const int32_t most_requests = options_.max_waiting + defaults_.limits.max_num_seqs;
  pool_ = std::make_unique<TextPool>(options_.text_threads, most_requests + kMaxTextCalls);
  watchdog_ = std::thread([this] { Watch(); });
}

EngineImpl::~EngineImpl() {
  {
    std::lock_guard lock(watch_mutex_);
    watch_ends_ = true;
  }
  watch_changed_.notify_all();
  watchdog_.join();
  BeginDrain();
  CancelAll(CancelReason::kDrain);
  WaitIdle(SteadyTime::max());
  pool_.reset();
  loop_->Stop();
  shards_.clear();
}

// ---- From the output shards and the engine thread ----

void EngineImpl::OnNoMoreWanted(const std::shared_ptr<LiveRequest>& request, absl::Status why) {
  loop_->Cancel(request->key, std::move(why));
}

void EngineImpl::OnToken(const LiveRequest& request, std::optional<Duration> since_previous,
                         Duration since_arrival) {
  if (since_previous.has_value()) {
    metrics_.OnNextToken(*since_previous);
  } else {
    const bool counted = request.prompt_counted->exchange(true);
    metrics_.OnFirstToken(since_arrival, counted ? 0 : request.prompt_tokens);
  }
}

void EngineImpl::OnFinish(const std::shared_ptr<LiveRequest>& request, OutputEvent last,
                          const SequenceEnd& end) {
  metrics_.OnFinish(last.finish->reason, end);
  if (last.finish->reason == FinishReason::kCancelled) metrics_.OnCancel(*request->cancelled());
  Deliver(request, std::move(last));
}

void EngineImpl::Deliver(const std::shared_ptr<LiveRequest>& request, OutputEvent last) {
  LogFinish(request->request.id, *last.finish);
  {
    // First: whoever has read the end finds room for another.
    std::lock_guard lock(live_mutex_);
    live_.erase(request);
    if (--num_alive_ == 0) idle_.notify_all();
  }
  request->buffer.Finish(std::move(last));
}

void EngineImpl::OnRoom() { loop_->Wake(); }

void EngineImpl::OnTurn(const SchedulerStats& stats) { metrics_.SetLoad(stats, NumNotRunning()); }

void EngineImpl::OnStep(int64_t num_tokens) { metrics_.OnStep(num_tokens); }

void EngineImpl::OnDeviceFailure(const absl::Status&) { options_.on_failure(); }

// ---- Life ----

Health EngineImpl::health() const {
  if (loop_->failed()) return Health::kFailed;
  return stalled_ ? Health::kStalled : Health::kServing;
}

void EngineImpl::BeginDrain() { draining_ = true; }

bool EngineImpl::WaitIdle(SteadyTime deadline) {
  std::unique_lock lock(live_mutex_);
  return idle_.wait_until(lock, deadline, [this] { return num_alive_ == 0; });
}

std::vector<std::shared_ptr<LiveRequest>> EngineImpl::Live() const {
  std::lock_guard lock(live_mutex_);
  return {live_.begin(), live_.end()};
}

void EngineImpl::CancelAll(CancelReason reason) {
  for (const std::shared_ptr<LiveRequest>& request : Live()) Cancel(request, reason);
  std::unique_lock lock(live_mutex_);
  const std::vector<Batch> batches(batches_.begin(), batches_.end());
  lock.unlock();
  for (const Batch& batch : batches) Cancel(*batch, reason);
}

void EngineImpl::Watch() {
  std::unique_lock lock(watch_mutex_);
  while (!watch_changed_.wait_for(lock, kWatchPeriod, [this] { return watch_ends_; })) {
    lock.unlock();
    const SteadyTime now = clock_.Now();
    CheckStall(now);
    CancelSlowReaders(now);
    lock.lock();
  }
}

void EngineImpl::CheckStall(SteadyTime now) {
  const std::optional<SteadyTime> since = loop_->BusySince();
  const bool stalled = since.has_value() && now - *since >= options_.stall_timeout;
  if (stalled_.exchange(stalled) == stalled) return;
  if (stalled) {
    metrics_.OnStall();
    kLog.Error("stalled: there is work, and no step has finished for ",
               ToSeconds(options_.stall_timeout), " s");
  } else {
    kLog.Info("steps finish again");
  }
}

void EngineImpl::CancelSlowReaders(SteadyTime now) {
  for (const std::shared_ptr<LiveRequest>& request : Live()) {
    const std::optional<SteadyTime> since = request->buffer.UnreadSince();
    if (since.has_value() && now - *since >= options_.read_timeout) {
      Cancel(request, CancelReason::kTooSlow);
    }
  }
}

}  // namespace millrace
