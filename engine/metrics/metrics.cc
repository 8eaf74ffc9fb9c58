#include "engine/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "base/clock.h"
#include "base/strings.h"
#include "engine/metrics/metric_maker.h"

namespace millrace {
namespace {

using Buckets = MetricMaker::Buckets;

// Seconds. vLLM's buckets with finer ones below: its lowest between two tokens is 10 ms.
const Buckets& TokenGaps() {
  static const auto* const buckets =
      new Buckets{0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01,
                  0.015,  0.02,    0.025, 0.05,   0.075, 0.1,   0.15,  0.2,   0.3,    0.4,
                  0.5,    0.75,    1,     2.5,    5,     7.5,   10,    20,    40,     80};
  return *buckets;
}
const Buckets& FirstTokenTimes() {
  static const auto* const buckets =
      new Buckets{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,
                  0.75,   1,     2.5,    5,     7.5,  10,   20,   40,   80,   160, 640,  2560};
  return *buckets;
}
// Seconds of a step: of a GPU's fastest to a long prompt's on a CPU.
const Buckets& StepTimes() {
  static const auto* const buckets = new Buckets{
      0.00025, 0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03,
      0.05,    0.075,  0.1,   0.15,  0.2,   0.3,   0.5,   1,      2.5,  5,     10};
  return *buckets;
}

// Powers of two up to the first that holds `most`.
Buckets TokensInAStep(int64_t most) {
  Buckets buckets = {1};
  while (buckets.back() < static_cast<double>(most)) buckets.push_back(buckets.back() * 2);
  return buckets;
}

// 1, 2, 5, 10, 20, … up to the first that holds `most`.
Buckets TokensOfARequest(int64_t most) {
  Buckets buckets;
  for (double decade = 1;; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      buckets.push_back(decade * step);
      if (buckets.back() >= static_cast<double>(most)) return buckets;
    }
  }
}

}  // namespace

// The arrays of counters are indexed by these.
static_assert(static_cast<size_t>(FinishReason::kError) + 1 == 4);
static_assert(static_cast<size_t>(CancelReason::kBatchFailed) + 1 == 6);
static_assert(static_cast<size_t>(Rejection::kDeadline) + 1 == 4);

EngineMetrics::EngineMetrics(prometheus::Registry& registry, std::string_view model_name,
                             const StepLimits& limits)
    : num_blocks_(limits.context_blocks()) {
  // Several engines of one model, as vLLM numbers them, do not exist here: it is always 0.
  const MetricMaker make(registry, {{"model_name", std::string(model_name)}, {"engine", "0"}});

  running_ = make.Gauge("vllm:num_requests_running", "Requests that hold a place in the batch.");
  waiting_ = make.Gauge("vllm:num_requests_waiting", "Requests that wait to be scheduled.");
  const auto waiting_by_reason = [&](const char* reason) {
    return make.Gauge("vllm:num_requests_waiting_by_reason",
                      "Requests that wait, by reason: for capacity; deferred, which none is.",
                      {{"reason", reason}});
  };
  waiting_for_capacity_ = waiting_by_reason("capacity");
  waiting_by_reason("deferred");
  for (const char* state : {"awake", "weights_offloaded", "discard_all"}) {
    make.Gauge("vllm:engine_sleep_state", "1 for the engine's state, which is always awake.",
               {{"sleep_state", state}})
        ->Set(std::string_view(state) == "awake" ? 1 : 0);
  }
  kv_cache_usage_ = make.Gauge("vllm:kv_cache_usage_perc",
                               "Share of the KV cache's blocks that sequences hold, of the layers "
                               "whose share is largest; 1 is all.");
  make.Gauge("vllm:cache_config_info", "How the KV cache is cut into blocks.",
             {{"block_size", StrCat(limits.block_size())}, {"num_gpu_blocks", StrCat(num_blocks_)}})
      ->Set(1);
  make.Gauge("vllm:lora_requests_info", "Adapters in use; none can be loaded.",
             {{"max_lora", "0"}, {"running_lora_adapters", ""}, {"waiting_lora_adapters", ""}})
      ->SetToCurrentTime();
  const auto blocks = [&](const char* state) {
    return make.Gauge("millrace_kv_cache_blocks",
                      "Blocks of the KV cache: held by sequences, cached but held by none, free.",
                      {{"state", state}});
  };
  blocks_held_ = blocks("held");
  blocks_cached_ = blocks("cached");
  blocks_free_ = blocks("free");
  blocks_free_->Set(num_blocks_);

  const auto checkpoints = [&](const char* state) {
    return make.Gauge("millrace_state_checkpoints",
                      "Places for checkpoints of recurrent layers' states: held by one, free; 0 "
                      "without such layers.",
                      {{"state", state}});
  };
  checkpoints_held_ = checkpoints("held");
  checkpoints_free_ = checkpoints("free");

  const auto graphs = [&](const char* state) {
    return make.Gauge("millrace_cuda_graphs",
                      "Batch sizes whose decode step is one CUDA graph, and those whose capture "
                      "failed: they run in a larger one, or kernel by kernel.",
                      {{"state", state}});
  };
  graphs_captured_ = graphs("captured");
  graphs_failed_ = graphs("failed");

  prefix_queries_ = make.Counter("vllm:prefix_cache_queries_total",
                                 "Prompt tokens looked up in the prefix cache.");
  prefix_hits_ =
      make.Counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.");
  checkpoint_hits_ =
      make.Counter("millrace_state_checkpoint_hits_total",
                   "Sequences that began from a checkpoint of recurrent layers' states.");
  checkpoints_taken_ = make.Counter("millrace_state_checkpoints_taken_total",
                                    "Checkpoints of recurrent layers' states that were taken.");
  checkpoints_evicted_ =
      make.Counter("millrace_state_checkpoints_evicted_total",
                   "Checkpoints of recurrent layers' states that gave way to others.");
  replayed_tokens_ =
      make.Counter("millrace_state_replayed_tokens_total",
                   "Tokens whose keys and values were cached, and which were computed again from "
                   "the last checkpoint of recurrent layers' states before them.");
  preemptions_ =
      make.Counter("vllm:num_preemptions_total",
                   "Sequences that gave up their blocks to others and were computed again.");
  forced_tokens_ = make.Counter("millrace_forced_tokens_total",
                                "Generated tokens to which a grammar left no alternative, and "
                                "which took no step of their own.");
  drafts_ = make.Counter("vllm:spec_decode_num_drafts_total",
                         "Rows of steps that had a draft, the guess of some tokens.");
  draft_tokens_ =
      make.Counter("vllm:spec_decode_num_draft_tokens_total", "Tokens of drafts, computed.");
  accepted_tokens_ = make.Counter("vllm:spec_decode_num_accepted_tokens_total",
                                  "Tokens of drafts that were sampled, too.");
  for (size_t i = 0; i < kDraftPositions; ++i) {
    accepted_by_position_[i] =
        make.Counter("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                     "Tokens of drafts that were sampled, too, by their place in the draft.",
                     {{"position", StrCat(i)}});
  }
  prompt_cut_time_ = make.Counter(
      "millrace_prompt_cut_seconds_total",
      "How much longer prompts took since they were cut for the sake of sequences that decode "
      "(--itl-slo-ms), as the scheduler's model of what steps cost has it.");
  prompt_cut_loss_ = make.Counter(
      "millrace_prompt_cut_lost_seconds_total",
      "The part of millrace_prompt_cut_seconds_total for which no sequence got more tokens: what "
      "cutting cost the throughput.");
  prompt_tokens_ =
      make.Counter("vllm:prompt_tokens_total",
                   "Prompt tokens worked through, those found in the prefix cache too.");
  prompt_tokens_cached_ =
      make.Counter("vllm:prompt_tokens_cached_total", "Prompt tokens found in the prefix cache.");
  const auto by_source = [&](const char* source) {
    return make.Counter("vllm:prompt_tokens_by_source_total",
                        "Prompt tokens by where their keys and values came from.",
                        {{"source", source}});
  };
  prompt_tokens_computed_ = by_source("local_compute");
  prompt_tokens_hit_ = by_source("local_cache_hit");
  by_source("external_kv_transfer");
  prompt_tokens_of_device_ = make.Counter(
      "vllm:prompt_tokens_cached_by_source_total",
      "Prompt tokens found in the prefix cache, by what holds it.", {{"source", "device"}});
  // vLLM's boards divide by these; there is no such cache here.
  for (const char* name :
       {"vllm:external_prefix_cache_queries_total", "vllm:external_prefix_cache_hits_total",
        "vllm:mm_cache_queries_total", "vllm:mm_cache_hits_total"}) {
    make.Counter(name, "Always 0: this server has no such cache.");
  }
  generation_tokens_ = make.Counter("vllm:generation_tokens_total", "Tokens generated.");
  stalls_ = make.Counter("millrace_engine_stalls_total",
                         "Times that there was work and no step finished for --stall-timeout.");
  finished_ = make.Counters<4>("vllm:request_success_total", "Requests ended, by how.",
                               "finished_reason", {"stop", "length", "abort", "error"});
  cancelled_ = make.Counters<6>(
      "millrace_requests_cancelled_total", "Requests ended before their own end, by why.", "reason",
      {"client_gone", "too_slow", "deadline", "drain", "evicted", "batch_failed"});
  rejected_ = make.Counters<4>("vllm:admission_rejections_total",
                               "Requests refused at admission, by reason.", "reason",
                               {"invalid", "queue_full", "unavailable", "deadline"});

  iteration_tokens_ = make.Histogram("vllm:iteration_tokens_total", "Tokens worked on in a step.",
                                     TokensInAStep(limits.max_num_batched_tokens));
  step_sequences_ = make.Histogram("millrace_step_batch_size", "Sequences worked on in a step.",
                                   TokensInAStep(limits.max_num_seqs));
  step_duration_ = make.Histogram(
      "millrace_step_duration_seconds",
      "From a step's submission, or the end of the one before it, to its result.", StepTimes());
  graph_steps_ = make.Counter("millrace_cuda_graph_steps_total",
                              "Steps that a GPU ran as one CUDA graph among all that "
                              "millrace_step_batch_size counts.");
  time_to_first_token_ =
      make.Histogram("vllm:time_to_first_token_seconds",
                     "From a request's arrival to its first token.", FirstTokenTimes());
  inter_token_latency_ = make.Histogram("vllm:inter_token_latency_seconds",
                                        "Between a sequence's tokens.", TokenGaps());
  time_per_output_token_ = make.Histogram("vllm:request_time_per_output_token_seconds",
                                          "A request's mean time between its tokens.", TokenGaps());
  e2e_latency_ =
      make.Histogram("vllm:e2e_request_latency_seconds", "From a request's arrival to its end.",
                     MetricMaker::RequestTimes());
  queue_time_ =
      make.Histogram("vllm:request_queue_time_seconds",
                     "From a request's arrival to its first step.", MetricMaker::RequestTimes());
  inference_time_ =
      make.Histogram("vllm:request_inference_time_seconds",
                     "From a request's first step to its end.", MetricMaker::RequestTimes());
  prefill_time_ = make.Histogram("vllm:request_prefill_time_seconds",
                                 "From a request's first step to its first token.",
                                 MetricMaker::RequestTimes());
  decode_time_ =
      make.Histogram("vllm:request_decode_time_seconds", "From a request's first token to its end.",
                     MetricMaker::RequestTimes());
  const Buckets tokens = TokensOfARequest(limits.max_model_len);
  request_prompt_tokens_ =
      make.Histogram("vllm:request_prompt_tokens", "Tokens in a request's prompt.", tokens);
  request_generation_tokens_ =
      make.Histogram("vllm:request_generation_tokens", "Tokens generated for a request.", tokens);
  request_max_generation_tokens_ =
      make.Histogram("vllm:request_max_num_generation_tokens",
                     "The most tokens generated for one of a request's answers.", tokens);
  request_computed_tokens_ = make.Histogram(
      "vllm:request_prefill_kv_computed_tokens",
      "Tokens of a request's prompt that were not found in the prefix cache.", tokens);
  params_n_ = make.Histogram("vllm:request_params_n", "Answers that a request asked for.",
                             {1, 2, 5, 10, 20});
  params_max_tokens_ = make.Histogram(
      "vllm:request_params_max_tokens",
      "Most tokens of an answer that a request asked for, where it says so.", tokens);
}

void EngineMetrics::SetLoad(const SchedulerStats& stats, int64_t waiting) {
  running_->Set(stats.num_running);
  waiting_->Set(static_cast<double>(waiting));
  waiting_for_capacity_->Set(static_cast<double>(waiting));
  kv_cache_usage_->Set(stats.usage);
  blocks_held_->Set(stats.blocks_held);
  blocks_cached_->Set(stats.blocks_cached);
  blocks_free_->Set(stats.blocks_free);
  checkpoints_held_->Set(stats.checkpoints_held);
  checkpoints_free_->Set(stats.checkpoints_free);
  const auto advance = [&](prometheus::Counter* counter, int64_t SchedulerStats::*count) {
    counter->Increment(static_cast<double>(stats.*count - last_.*count));
  };
  advance(prefix_queries_, &SchedulerStats::prefix_queries);
  advance(prefix_hits_, &SchedulerStats::prefix_hits);
  advance(checkpoint_hits_, &SchedulerStats::checkpoint_hits);
  advance(checkpoints_taken_, &SchedulerStats::checkpoints_taken);
  advance(checkpoints_evicted_, &SchedulerStats::checkpoints_evicted);
  advance(replayed_tokens_, &SchedulerStats::replayed_tokens);
  advance(preemptions_, &SchedulerStats::preemptions);
  advance(forced_tokens_, &SchedulerStats::forced_tokens);
  advance(drafts_, &SchedulerStats::drafts);
  advance(draft_tokens_, &SchedulerStats::draft_tokens);
  for (size_t i = 0; i < kDraftPositions; ++i) {
    const auto accepted = static_cast<double>(stats.accepted_tokens[i] - last_.accepted_tokens[i]);
    accepted_tokens_->Increment(accepted);
    accepted_by_position_[i]->Increment(accepted);
  }
  prompt_cut_time_->Increment(ToSeconds(stats.prompt_cut_time - last_.prompt_cut_time));
  prompt_cut_loss_->Increment(ToSeconds(stats.prompt_cut_loss - last_.prompt_cut_loss));
  last_ = stats;
}

void EngineMetrics::OnStep(const StepFigures& step) {
  iteration_tokens_->Observe(static_cast<double>(step.tokens));
  step_sequences_->Observe(static_cast<double>(step.sequences));
  step_duration_->Observe(ToSeconds(step.took));
  if (step.as_graph) graph_steps_->Increment();
}

void EngineMetrics::OnPrompt(int64_t prompt_tokens, int64_t cached_tokens) {
  prompt_tokens_->Increment(static_cast<double>(prompt_tokens));
  prompt_tokens_computed_->Increment(static_cast<double>(prompt_tokens - cached_tokens));
  for (prometheus::Counter* cached :
       {prompt_tokens_cached_, prompt_tokens_hit_, prompt_tokens_of_device_}) {
    cached->Increment(static_cast<double>(cached_tokens));
  }
}

void EngineMetrics::OnFirstToken(Duration since_arrival) {
  generation_tokens_->Increment();
  time_to_first_token_->Observe(ToSeconds(since_arrival));
}

void EngineMetrics::OnNextToken(Duration since_previous) {
  generation_tokens_->Increment();
  inter_token_latency_->Observe(ToSeconds(since_previous));
}

void EngineMetrics::OnEmbedding(int64_t prompt_tokens) { OnPrompt(prompt_tokens, 0); }

void EngineMetrics::OnAccept(int32_t n, std::optional<int32_t> max_tokens) {
  params_n_->Observe(n);
  if (max_tokens.has_value()) params_max_tokens_->Observe(*max_tokens);
}

void EngineMetrics::OnFinish(FinishReason reason, const SequenceEnd& end) {
  finished_[static_cast<size_t>(reason)]->Increment();
  if (reason != FinishReason::kStop && reason != FinishReason::kLength) return;

  e2e_latency_->Observe(ToSeconds(end.ended - end.arrival));
  request_prompt_tokens_->Observe(end.prompt_tokens);
  request_generation_tokens_->Observe(end.generated_tokens);
  request_max_generation_tokens_->Observe(end.generated_tokens);
  request_computed_tokens_->Observe(
      end.first_scheduled.has_value() ? end.prompt_tokens - end.cached_tokens : 0);
  if (!end.first_scheduled.has_value()) return;
  queue_time_->Observe(ToSeconds(*end.first_scheduled - end.arrival));
  inference_time_->Observe(ToSeconds(end.ended - *end.first_scheduled));
  if (!end.first_token.has_value()) return;
  const Duration decode = end.ended - *end.first_token;
  prefill_time_->Observe(ToSeconds(*end.first_token - *end.first_scheduled));
  decode_time_->Observe(ToSeconds(decode));
  if (end.generated_tokens > 1) {
    time_per_output_token_->Observe(ToSeconds(decode) / (end.generated_tokens - 1));
  }
}

void EngineMetrics::OnCancel(CancelReason reason) {
  cancelled_[static_cast<size_t>(reason)]->Increment();
}
void EngineMetrics::OnReject(Rejection reason) {
  rejected_[static_cast<size_t>(reason)]->Increment();
}
void EngineMetrics::OnStall() { stalls_->Increment(); }

void EngineMetrics::SetGraphs(int32_t captured, int32_t failed) {
  graphs_captured_->Set(captured);
  graphs_failed_->Set(failed);
}

}  // namespace millrace
