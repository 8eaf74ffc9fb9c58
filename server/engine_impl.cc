#include "server/engine_impl.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "server/text/detokenizer.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kEngine);
constexpr Duration kWatchPeriod = std::chrono::milliseconds(250);

// Tokenize and Detokenize calls that may wait, beside the requests to generate.
constexpr size_t kMaxTextCalls = 1024;

absl::Status Draining() {
  return WithRetryAfter(absl::UnavailableError("the server is draining"), absl::Seconds(1));
}

absl::Status Full(const char* what, int64_t limit) {
  return WithRetryAfter(absl::ResourceExhaustedError(
                            absl::StrCat(what, ": ", limit, " are waiting, the most allowed")),
                        absl::Seconds(1));
}

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

void LogPrompt(const std::string& id, const Tokenizer& tokenizer,
               const std::vector<Token>& prompt) {
  constexpr size_t kMostBytes = 1 << 16;
  kLog.ForRequest(id).Info(
      "prompt: ", Printable(Decode(tokenizer, prompt, /*skip_special=*/false), kMostBytes));
}

// A year ahead is as good as never, and far from what the clock's numbers can hold.
SteadyTime ToSteady(absl::Time time, SteadyTime now) {
  constexpr absl::Duration kYear = absl::Hours(24 * 365);
  const absl::Duration ahead = std::clamp(time - absl::Now(), -kYear, kYear);
  return now + absl::ToChronoNanoseconds(ahead);
}

}  // namespace

// What a door holds of a request.
class EngineImpl::Stream final : public ResponseStream {
 public:
  Stream(EngineImpl* engine, std::shared_ptr<LiveRequest> request)
      : engine_(engine), request_(std::move(request)) {}
  ~Stream() override {
    request_->buffer.Abandon();
    if (!request_->buffer.finished()) engine_->Cancel(request_, CancelReason::kClientGone);
  }

  std::optional<OutputEvent> Next() override { return request_->buffer.Next(); }
  void Cancel(CancelReason reason) override { engine_->Cancel(request_, reason); }

 private:
  EngineImpl* const engine_;
  const std::shared_ptr<LiveRequest> request_;
};

absl::StatusOr<std::unique_ptr<EngineImpl>> EngineImpl::Create(EngineOptions options,
                                                               std::unique_ptr<Executor> executor,
                                                               std::unique_ptr<const TextSet> text,
                                                               Metrics& metrics) {
  const ModelInfo& model = executor->info();
  const StepLimits& limits = model.limits;
  if (const int32_t tokens = text->tokenizer().vocab_size(); tokens > limits.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tokenizer: has ", tokens, " tokens; allowed: up to the model's ", limits.vocab_size));
  }
  MILLRACE_ASSIGN_OR_RETURN(
      std::unique_ptr<Scheduler> scheduler,
      Scheduler::Create({.limits = limits, .prefix_caching = options.prefix_caching}));
  const auto of_text = text->tokenizer().end_of_generation();
  std::vector<Token> ends(of_text.begin(), of_text.end());
  ends.insert(ends.end(), model.end_tokens.begin(), model.end_tokens.end());
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
                     .batch_invariant = model.batch_invariant};
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
  pool_.reset();
  loop_->Stop();
  shards_.clear();
}

// ---- At the door ----

int32_t EngineImpl::NumNotRunning() const {
  const LoopGauges& gauges = loop_->gauges();
  return in_text_ + gauges.in_inbox + gauges.waiting;
}

absl::Status EngineImpl::AdmitAtDoor(const GenerateRequest& request, size_t num_alive) {
  if (loop_->failed()) {
    return WithRetryAfter(absl::UnavailableError("the device has failed"), absl::Seconds(1));
  }
  if (draining_) return Draining();
  MILLRACE_RETURN_IF_ERROR(ValidateRequest(request, text_->tokenizer().vocab_size()));
  if (const auto* text = std::get_if<std::string>(&request.prompt)) {
    MILLRACE_RETURN_IF_ERROR(text_->CheckLength(text->size(), defaults_.limits.max_model_len));
  }
  // Those that the batch has room for do not wait in this sense, even while the next step is yet to
  // be planned.
  const int64_t most = int64_t{options_.max_waiting} + defaults_.limits.max_num_seqs;
  if (static_cast<int64_t>(num_alive) > most) {
    return Full("the queue is full", options_.max_waiting);
  }
  return absl::OkStatus();
}

std::shared_ptr<ResponseStream> EngineImpl::Generate(GenerateRequest request,
                                                     std::function<void()> ready) {
  auto live = std::make_shared<LiveRequest>(clock_, std::move(request), std::move(ready));
  live->key = next_key_++;
  if (live->request.deadline.has_value()) {
    live->deadline = ToSteady(*live->request.deadline, clock_.Now());
  }
  auto stream = std::make_shared<Stream>(this, live);
  size_t num_alive = 0;  // with this one
  {
    std::lock_guard lock(live_mutex_);
    live_.insert(live);
    num_alive = live_.size();
  }
  ++in_text_;
  absl::Status status = AdmitAtDoor(live->request, num_alive);
  if (status.ok()) {
    const size_t bytes = PromptBytes(live->request.prompt);
    if (pool_->Submit(bytes, [this, live] { Prepare(live); })) return stream;
    status = Full("the queue is full", options_.max_waiting);
  }
  --in_text_;
  Refuse(live, std::move(status));
  return stream;
}

void EngineImpl::Refuse(const std::shared_ptr<LiveRequest>& request, absl::Status why) {
  if (why.code() == absl::StatusCode::kResourceExhausted) {
    metrics_.OnReject(Rejection::kQueueFull);
  } else if (why.code() == absl::StatusCode::kUnavailable) {
    metrics_.OnReject(Rejection::kUnavailable);
  } else {
    metrics_.OnReject(Rejection::kInvalid);
  }
  OutputEvent last;
  last.finish.emplace();
  last.finish->reason = FinishReason::kError;
  last.finish->status = std::move(why);
  last.finish->usage.prompt_tokens = static_cast<int32_t>(request->prompt.size());
  last.finish->timings.queue = absl::FromChrono(clock_.Now() - request->arrival);
  Deliver(request, std::move(last));
}

void EngineImpl::Cancel(const std::shared_ptr<LiveRequest>& request, CancelReason reason) {
  if (request->SetCancelled(reason)) loop_->Cancel(request->key, CancelStatus(reason));
}

// SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014).
uint64_t EngineImpl::DrawSeed() {
  constexpr uint64_t kGamma = 0x9e3779b97f4a7c15;
  uint64_t z = seed_state_.fetch_add(kGamma) + kGamma;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

OutputShard& EngineImpl::ShardOf(const LiveRequest& request) {
  return *shards_[request.key % shards_.size()];
}

// ---- On the text pool ----

void EngineImpl::Prepare(const std::shared_ptr<LiveRequest>& request) {
  request->answer.emplace(&text_->tokenizer(), &request->request);
  absl::Status status = Admit(request);
  const SteadyTime now = clock_.Now();
  if (request->deadline.has_value() && now >= *request->deadline) {
    request->SetCancelled(CancelReason::kDeadline);
  }
  if (const auto reason = request->cancelled(); reason.has_value() && !status.ok()) {
    ShardOf(*request).DeliverEnd(request, EndReason::kCancelled, CancelStatus(*reason), now);
  } else if (!status.ok()) {
    Refuse(request, std::move(status));
  }
  --in_text_;
}

// Hands the request on. An error: nothing was done.
absl::Status EngineImpl::Admit(const std::shared_ptr<LiveRequest>& request) {
  GenerateRequest& generate = request->request;
  const SteadyTime deadline = request->deadline.value_or(SteadyTime::max());
  if (clock_.Now() >= deadline) return CancelStatus(CancelReason::kDeadline);
  if (const auto reason = request->cancelled()) return CancelStatus(*reason);

  MILLRACE_ASSIGN_OR_RETURN(
      request->prompt,
      text_->PromptTokens({.prompt = generate.prompt}, defaults_.limits.max_model_len, deadline));
  if (request->prompt.empty()) return absl::InvalidArgumentError("prompt has no tokens");
  if (options_.log_prompts) LogPrompt(generate.id, text_->tokenizer(), request->prompt);
  if (!generate.seed.has_value()) generate.seed = DrawSeed();
  MILLRACE_ASSIGN_OR_RETURN(SequenceRequest sequence,
                            MakeSequence(generate, request->prompt, defaults_));
  // A text may be long, and only an echo needs it again.
  if (!generate.echo) generate.prompt.emplace<std::string>();
  if (NeedsNoModel(generate, request->prompt)) {
    ShardOf(*request).DeliverEnd(request, EndReason::kLength, absl::OkStatus(), clock_.Now());
    return absl::OkStatus();
  }
  sequence.id = request->key;
  sequence.arrival = request->arrival;
  loop_->Admit({request, std::move(sequence)});
  return absl::OkStatus();
}

void EngineImpl::Tokenize(TokenizeRequest request,
                          std::function<void(absl::StatusOr<TokenizeResult>)> done) {
  const size_t bytes = PromptBytes(request.prompt);
  auto work = [this, request = std::move(request), done] {
    absl::StatusOr<std::vector<Token>> tokens =
        text_->PromptTokens(request, Tokenizer::kMaxTextBytes, SteadyTime::max());
    if (!tokens.ok()) return done(tokens.status());
    TokenizeResult result{.tokens = *std::move(tokens)};
    if (request.return_token_strs) {
      for (Token token : result.tokens) {
        result.token_strs.emplace_back(text_->tokenizer().TokenBytes(token));
      }
    }
    done(std::move(result));
  };
  if (!pool_->Submit(bytes, std::move(work))) done(Full("too many requests", kMaxTextCalls));
}

void EngineImpl::Detokenize(std::vector<Token> tokens,
                            std::function<void(absl::StatusOr<std::string>)> done) {
  const size_t bytes = tokens.size() * sizeof(Token);
  auto work = [this, tokens = std::move(tokens), done] {
    const int32_t vocab_size = text_->tokenizer().vocab_size();
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < 0 || tokens[i] >= vocab_size) {
        return done(absl::InvalidArgumentError(
            absl::StrCat("tokens[", i, "] is ", tokens[i], "; allowed: 0 to ", vocab_size - 1)));
      }
    }
    done(Decode(text_->tokenizer(), tokens, /*skip_special=*/false));
  };
  if (!pool_->Submit(bytes, std::move(work))) done(Full("too many requests", kMaxTextCalls));
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
    metrics_.OnFirstToken(since_arrival, static_cast<int64_t>(request.prompt.size()));
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
  request->buffer.Finish(std::move(last));
  std::lock_guard lock(live_mutex_);
  live_.erase(request);
  if (live_.empty()) idle_.notify_all();
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
  return idle_.wait_until(lock, deadline, [this] { return live_.empty(); });
}

std::vector<std::shared_ptr<LiveRequest>> EngineImpl::Live() const {
  std::lock_guard lock(live_mutex_);
  return {live_.begin(), live_.end()};
}

void EngineImpl::CancelAll(CancelReason reason) {
  for (const std::shared_ptr<LiveRequest>& request : Live()) Cancel(request, reason);
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
