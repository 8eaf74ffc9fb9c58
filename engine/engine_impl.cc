#include "engine/engine_impl.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/status.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kEngine);

// Returns the most tokens of a draft.
int32_t DraftTokens(const EngineOptions& options, const ModelInfo& model) {
  if (!options.lookup.has_value()) return 0;
  return std::min(options.lookup->max_tokens, model.max_draft_tokens);
}

RequestSpan SpanOf(const LiveRequest& request, const std::string& model, const Finish& finish,
                   const SequenceEnd& end) {
  const GenerateRequest& asked = request.request;
  return {.request_id = asked.id,
          .model = model,
          .parent = asked.trace,
          .finish_reason = Name(finish.reason),
          .status = finish.status,
          .arrival = end.arrival,
          .first_scheduled = end.first_scheduled,
          .first_token = end.first_token,
          .ended = end.ended,
          .choice = static_cast<int32_t>(request.choice),
          .prompt_tokens = finish.usage.prompt_tokens,
          .cached_tokens = finish.usage.cached_tokens,
          .completion_tokens = finish.usage.completion_tokens,
          .n = asked.n,
          .max_tokens = asked.max_tokens,
          .temperature = asked.temperature,
          .top_p = asked.top_p};
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
  if (model.score.has_value() && text->tokenizer().pair_frame().empty()) {
    return absl::UnimplementedError(
        "tokenizer.json: post_processor: has no template of pairs of texts that is supported, "
        "which the model scores");
  }
  // An encoder's tokens see what follows: a beginning is worth nothing to another text. A mean is
  // of all tokens' states, which no cache has.
  if (options.prefix_caching && limits.whole_sequences()) {
    kLog.Info("prefix-caching: off, as for every encoder and every mean of a decoder's states");
    options.prefix_caching = false;
  }
  if (options.prefix_caching && limits.has_slots() && limits.num_checkpoints() == 0) {
    kLog.Info(
        "prefix-caching: off, since the memory for checkpoints of recurrent layers' states "
        "(--state-cache-memory) holds none");
    options.prefix_caching = false;
  }
  if (options.block_events != nullptr && !options.prefix_caching) {
    kLog.Warning("kv-events-config: there are no events, since prefix-caching is off");
  }
  MILLRACE_ASSIGN_OR_RETURN(std::unique_ptr<Scheduler> scheduler,
                            Scheduler::Create({.limits = limits,
                                               .prefix_caching = options.prefix_caching,
                                               .late_masks = model.takes_late_masks,
                                               .block_events = options.block_events != nullptr,
                                               .num_draft_tokens = DraftTokens(options, model),
                                               .num_step_draft_tokens = model.max_step_draft_tokens,
                                               .itl_slo = options.itl_slo}));
  const auto of_text = text->tokenizer().end_of_generation();
  std::vector<Token> ends(of_text.begin(), of_text.end());
  ends.insert(ends.end(), model.end_tokens.begin(), model.end_tokens.end());
  ends.erase(
      std::remove_if(ends.begin(), ends.end(), [&](Token end) { return end >= limits.vocab_size; }),
      ends.end());
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  SequenceDefaults defaults = {.limits = limits,
                               .prefix_caching = options.prefix_caching,
                               .cache_root = CacheRoot({model.digest, model.kv_type}),
                               .names_salts = options.block_events != nullptr,
                               .end_of_generation = std::move(ends)};
  EngineInfo info = {.model_name = options.model_name,
                     .architecture = model.architecture,
                     .created = absl::Now(),
                     .max_model_len = limits.max_model_len,
                     .vocab_size = limits.vocab_size,
                     .block_size = limits.block_size(),
                     .num_blocks = limits.context_blocks(),
                     .longest_sequence = static_cast<int32_t>(MaxNewTokens(0, limits)),
                     .has_chat_template = text->has_chat_template(),
                     .batch_invariant = model.batch_invariant,
                     .tensor_parallel_size = model.tensor_parallel_size,
                     .expert_parallel = model.expert_parallel,
                     .sampling = options.sampling,
                     .tool_parser = text->tool_parser(),
                     .reasoning_parser = text->reasoning_parser(),
                     .embedding_size = limits.embedding_size,
                     .score = model.score,
                     .embedding = model.embedding,
                     .tokenizer = text->info(),
                     .max_num_seqs = limits.max_num_seqs,
                     .end_tokens = defaults.end_of_generation,
                     .state = limits.state,
                     .blocks_by_group = limits.num_blocks};
  EngineMetrics& engine_metrics = metrics.AddEngine(options.model_name, limits);
  engine_metrics.SetGraphs(model.graphs, model.graphs_failed);
  return std::unique_ptr<EngineImpl>(
      new EngineImpl(std::move(options), std::move(defaults), std::move(info), std::move(scheduler),
                     std::move(executor), std::move(text), engine_metrics));
}

EngineImpl::EngineImpl(EngineOptions options, SequenceDefaults defaults, EngineInfo info,
                       std::unique_ptr<Scheduler> scheduler, std::unique_ptr<Executor> executor,
                       std::unique_ptr<const TextSet> text, EngineMetrics& metrics)
    : parts_(std::move(options), std::move(defaults), std::move(info), std::move(scheduler),
             std::move(executor), std::move(text), metrics, static_cast<ShardListener*>(this),
             static_cast<LoopListener*>(this)),
      generator_(&parts_),
      embedder_(&parts_),
      text_calls_(&parts_) {
  parts_.loop.Start();
  watchdog_ = std::make_unique<Watchdog>(&parts_);
}

EngineImpl::~EngineImpl() {
  watchdog_.reset();
  BeginDrain();
  CancelAll(CancelReason::kDrain);
  WaitIdle(SteadyTime::max());
  parts_.pool.reset();
  parts_.loop.Stop();
  parts_.shards.clear();
}

// ---- Calls ----

std::vector<std::shared_ptr<ResponseStream>> EngineImpl::Generate(GenerateRequest request,
                                                                  std::function<void()> ready) {
  return generator_.Generate(std::move(request), std::move(ready));
}

std::function<void()> EngineImpl::Embed(EmbedRequest request,
                                        std::function<void(absl::StatusOr<Embeddings>)> done) {
  return embedder_.Embed(std::move(request), std::move(done));
}

// ---- From the output shards and the engine thread ----

void EngineImpl::OnNoMoreWanted(const std::shared_ptr<LiveRequest>& request, absl::Status why) {
  parts_.loop.Cancel(request->key, std::move(why));
}

void EngineImpl::OnToken(const LiveRequest& request, std::optional<Duration> since_previous,
                         Duration since_arrival) {
  if (since_previous.has_value()) {
    parts_.metrics.OnNextToken(*since_previous);
  } else {
    CountPrompt(request, request.cached_tokens);
    parts_.metrics.OnFirstToken(since_arrival);
  }
}

void EngineImpl::CountPrompt(const LiveRequest& request, int64_t cached_tokens) {
  if (request.prompt_counted->exchange(true)) return;
  parts_.metrics.OnPrompt(request.prompt_tokens, cached_tokens);
}

void EngineImpl::OnFinish(const std::shared_ptr<LiveRequest>& request, OutputEvent last,
                          const SequenceEnd& end) {
  // A prompt that was only scored has no first token.
  const bool scored = last.finish->reason == FinishReason::kLength && end.generated_tokens == 0 &&
                      end.first_scheduled.has_value();
  if (scored) CountPrompt(*request, end.cached_tokens);
  if (request->refused) {
    parts_.metrics.OnReject(Rejection::kDeadline);
  } else {
    parts_.metrics.OnFinish(last.finish->reason, end);
    if (last.finish->reason == FinishReason::kCancelled) {
      parts_.metrics.OnCancel(request->cancelled().value_or(CancelReason::kTooSlow));
    }
  }
  if (parts_.options.spans != nullptr) {
    parts_.options.spans->OnSpan(SpanOf(*request, parts_.info.model_name, *last.finish, end));
  }
  generator_.Finish(request, std::move(last));
}

void EngineImpl::OnEmbedded(const std::shared_ptr<LiveRequest>& request,
                            absl::Span<const float> embedding, const SequenceEnd& end) {
  embedder_.OnEmbedded(request, embedding, end);
}

void EngineImpl::OnCapacity() { parts_.loop.Wake(); }

void EngineImpl::OnIteration(const SchedulerStats& stats) {
  parts_.metrics.SetLoad(stats, parts_.admission.num_not_running());
}

void EngineImpl::OnStep(const StepFigures& step) { parts_.metrics.OnStep(step); }

void EngineImpl::OnDeviceFailure(const absl::Status&) { parts_.options.on_failure(); }

// ---- Life ----

Health EngineImpl::health() const {
  if (parts_.loop.failed()) return Health::kFailed;
  return watchdog_->stalled() ? Health::kStalled : Health::kServing;
}

void EngineImpl::BeginDrain() { parts_.admission.BeginDrain(); }

bool EngineImpl::WaitIdle(SteadyTime deadline) {
  const bool requests_ended = parts_.admission.WaitIdle(deadline);
  return text_calls_.WaitIdle(deadline) && requests_ended;
}

void EngineImpl::CancelAll(CancelReason reason) {
  for (const std::shared_ptr<LiveRequest>& request : parts_.admission.requests()) {
    parts_.Cancel(request, reason);
  }
  for (const std::shared_ptr<EmbeddingBatch>& batch : parts_.admission.batches()) {
    embedder_.Cancel(*batch, reason);
  }
  text_calls_.CancelAll(reason);
}

}  // namespace millrace
