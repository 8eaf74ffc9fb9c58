// The metrics for Prometheus. Names, labels and meaning of `vllm:` metrics are vLLM's, so that its
// dashboards, autoscalers and routers work; what vLLM does not have begins with `millrace_`.
#ifndef MILLRACE_ENGINE_METRICS_METRICS_H_
#define MILLRACE_ENGINE_METRICS_METRICS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/metrics/tenant_metrics.h"
#include "engine/request/request.h"
#include "scheduler/scheduler.h"
#include "scheduler/token_event.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
class Registry;
}  // namespace prometheus

namespace millrace {

class GpuMetrics;

// Why a request was refused before it got to the scheduler.
enum class Rejection {
  kInvalid,      // its fields, or what can never fit
  kQueueFull,    // --max-waiting
  kUnavailable,  // draining, or the device has failed
  kDeadline,     // it would most likely not begin before its deadline; each choice by itself
};

// A step that was committed.
struct StepFigures {
  int64_t tokens = 0;     // computed
  int64_t sequences = 0;  // that it computed for
  bool as_graph = false;  // StepResult::as_graph
  Duration took{0};       // from its submission, or the end of the step before it, to its result
};

// One engine's metrics. Each call is a few atomic operations or a short lock; none allocates.
class EngineMetrics {
 public:
  EngineMetrics(prometheus::Registry& registry, std::string_view model_name,
                const StepLimits& limits);
  EngineMetrics(const EngineMetrics&) = delete;
  EngineMetrics& operator=(const EngineMetrics&) = delete;

  // Called by the engine thread alone, in each round of its loop. `stats` are the scheduler's;
  // `waiting` also counts requests that have not reached it yet.
  void SetLoad(const SchedulerStats& stats, int64_t waiting);

  // The rest from any thread.

  void OnStep(const StepFigures& step);
  // Called once for a prompt, whose sequences share it, when it has been worked through.
  void OnPrompt(int64_t prompt_tokens, int64_t cached_tokens);
  // Called when a sequence's first token was sampled.
  void OnFirstToken(Duration since_arrival);
  // Called when a further token was sampled.
  void OnNextToken(Duration since_previous);
  // Called when a prompt's embedding was computed.
  void OnEmbedding(int64_t prompt_tokens);
  // Called when a request was accepted: how many answers, and tokens of each, it asked for; no
  // number of tokens: as many as fit.
  void OnAccept(int32_t n, std::optional<int32_t> max_tokens);
  // Called once at the end of each request that was not refused. One that ended on its own (kStop,
  // kLength) is also in the histograms of times and lengths.
  void OnFinish(FinishReason reason, const SequenceEnd& end);
  void OnCancel(CancelReason reason);
  void OnReject(Rejection reason);
  // Called when there was work and no step finished for --stall-timeout.
  void OnStall();
  // Sets ModelInfo's counts of graphs. Called once.
  void SetGraphs(int32_t captured, int32_t failed);

  static constexpr size_t kDraftPositions =
      std::tuple_size_v<decltype(SchedulerStats::accepted_tokens)>;

 private:
  SchedulerStats last_;  // of the last SetLoad; for the differences

  prometheus::Gauge* running_;
  prometheus::Gauge* waiting_;
  prometheus::Gauge* waiting_for_capacity_;
  prometheus::Gauge* kv_cache_usage_;
  prometheus::Gauge* blocks_held_;
  prometheus::Gauge* blocks_cached_;
  prometheus::Gauge* blocks_free_;
  prometheus::Gauge* checkpoints_held_;
  prometheus::Gauge* checkpoints_free_;
  const int32_t num_blocks_;
  prometheus::Gauge* graphs_captured_;
  prometheus::Gauge* graphs_failed_;

  prometheus::Counter* prefix_queries_;
  prometheus::Counter* prefix_hits_;
  prometheus::Counter* checkpoint_hits_;
  prometheus::Counter* checkpoints_taken_;
  prometheus::Counter* checkpoints_evicted_;
  prometheus::Counter* replayed_tokens_;
  prometheus::Counter* preemptions_;
  prometheus::Counter* forced_tokens_;
  prometheus::Counter* drafts_;
  prometheus::Counter* draft_tokens_;
  prometheus::Counter* accepted_tokens_;
  std::array<prometheus::Counter*, kDraftPositions> accepted_by_position_;
  prometheus::Counter* prompt_cut_time_;
  prometheus::Counter* prompt_cut_loss_;
  prometheus::Counter* prompt_tokens_;
  prometheus::Counter* prompt_tokens_cached_;
  prometheus::Counter* prompt_tokens_of_device_;
  prometheus::Counter* prompt_tokens_computed_;
  prometheus::Counter* prompt_tokens_hit_;
  prometheus::Counter* generation_tokens_;
  prometheus::Counter* stalls_;
  std::array<prometheus::Counter*, 4> finished_;   // by FinishReason
  std::array<prometheus::Counter*, 6> cancelled_;  // by CancelReason
  std::array<prometheus::Counter*, 4> rejected_;   // by Rejection

  prometheus::Histogram* iteration_tokens_;
  prometheus::Histogram* step_sequences_;
  prometheus::Histogram* step_duration_;
  prometheus::Counter* graph_steps_;
  prometheus::Histogram* time_to_first_token_;
  prometheus::Histogram* inter_token_latency_;
  prometheus::Histogram* time_per_output_token_;
  prometheus::Histogram* e2e_latency_;
  prometheus::Histogram* queue_time_;
  prometheus::Histogram* inference_time_;
  prometheus::Histogram* prefill_time_;
  prometheus::Histogram* decode_time_;
  prometheus::Histogram* request_prompt_tokens_;
  prometheus::Histogram* request_generation_tokens_;
  prometheus::Histogram* request_max_generation_tokens_;
  prometheus::Histogram* request_computed_tokens_;
  prometheus::Histogram* params_n_;
  prometheus::Histogram* params_max_tokens_;
};

// How a request to a tensor model ended.
enum class InferEnd { kOk, kInvalid, kQueueFull, kUnavailable, kCancelled, kDeadline, kError };

// One tensor model's metrics. Thread-safe.
class InferMetrics {
 public:
  InferMetrics(prometheus::Registry& registry, std::string_view model_name);
  InferMetrics(const InferMetrics&) = delete;
  InferMetrics& operator=(const InferMetrics&) = delete;

  void SetWaiting(size_t waiting);
  // Called once at the end of each request.
  void OnEnd(InferEnd end);
  // Called when a request has run: how long it waited before, and how long the model took.
  void OnRun(Duration queue, Duration compute);

 private:
  prometheus::Gauge* waiting_;
  std::array<prometheus::Counter*, 7> ended_;  // by InferEnd
  prometheus::Histogram* queue_time_;
  prometheus::Histogram* compute_time_;
};

// All metrics of the process. Thread-safe.
class Metrics {
 public:
  // The content type of Render's text.
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Adds an engine, by a name that no other one has. The reference lives as long as this.
  EngineMetrics& AddEngine(std::string_view model_name, const StepLimits& limits);

  // Adds the metrics of a tensor model.
  InferMetrics& AddInferEngine(std::string_view model_name);

  // Sets whose use is shown, by name. Call before the first Render.
  void SetTenants(TenantLister lister) { tenants_ = std::move(lister); }

  // Sets whether the server is ready: after warm-up, until it begins to end.
  void SetReady(bool ready);
  void OnHttpConnectionOpened();
  void OnHttpConnectionClosed();

  // Shows the machine's GPUs from now on, if it has NVIDIA's management library.
  void WatchGpus();

  // The registry of all, for parts of the server that have metrics of their own.
  prometheus::Registry& registry() { return *registry_; }

  // Returns all metrics in Prometheus' text format 0.0.4, with the process's own figures.
  std::string Render() const;

 private:
  const std::unique_ptr<prometheus::Registry> registry_;
  prometheus::Gauge* ready_;
  prometheus::Gauge* http_connections_;
  prometheus::Counter* http_connections_opened_;

  TenantLister tenants_;  // null: there are none

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<EngineMetrics>> engines_;       // guarded by mutex_
  std::vector<std::unique_ptr<InferMetrics>> infer_engines_;  // guarded by mutex_
  std::unique_ptr<GpuMetrics> gpus_;                          // guarded by mutex_; may be null
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_METRICS_METRICS_H_
