// Metrics and InferMetrics of metrics.h.
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "config/help.h"
#include "engine/metrics/gpu_metrics.h"
#include "engine/metrics/metric_maker.h"
#include "engine/metrics/metrics.h"
#include "engine/metrics/metrics_text.h"
#include "engine/metrics/process_metrics.h"

namespace millrace {

// The array of counters is indexed by it.
static_assert(static_cast<size_t>(InferEnd::kError) + 1 == 7);

InferMetrics::InferMetrics(prometheus::Registry& registry, std::string_view model_name) {
  const MetricMaker make(registry, {{"model_name", std::string(model_name)}});
  waiting_ = make.Gauge("millrace_infer_requests_waiting", "Infer requests that wait to run.");
  ended_ = make.Counters<7>(
      "millrace_infer_requests_total", "Infer requests ended, by how.", "outcome",
      {"ok", "invalid", "queue_full", "unavailable", "cancelled", "deadline", "error"});
  queue_time_ =
      make.Histogram("millrace_infer_queue_time_seconds",
                     "From an Infer request's arrival to its run.", MetricMaker::RequestTimes());
  compute_time_ =
      make.Histogram("millrace_infer_compute_time_seconds",
                     "Time that the model took for an Infer request.", MetricMaker::RequestTimes());
}

void InferMetrics::SetWaiting(size_t waiting) { waiting_->Set(static_cast<double>(waiting)); }
void InferMetrics::OnEnd(InferEnd end) { ended_[static_cast<size_t>(end)]->Increment(); }

void InferMetrics::OnRun(Duration queue, Duration compute) {
  queue_time_->Observe(ToSeconds(queue));
  compute_time_->Observe(ToSeconds(compute));
}

Metrics::Metrics() : registry_(std::make_unique<prometheus::Registry>()) {
  const MetricMaker make(*registry_, {});
  make.Gauge("millrace_build_info", "The version that runs.", {{"version", std::string(Version())}})
      ->Set(1);
  ready_ = make.Gauge("millrace_ready", "1 after warm-up, until the server begins to end.");
  http_connections_ = make.Gauge("millrace_http_connections", "HTTP connections now open.");
  http_connections_opened_ =
      make.Counter("millrace_http_connections_opened_total", "HTTP connections accepted.");
}

Metrics::~Metrics() = default;

EngineMetrics& Metrics::AddEngine(std::string_view model_name, const StepLimits& limits) {
  auto engine = std::make_unique<EngineMetrics>(*registry_, model_name, limits);
  std::lock_guard lock(mutex_);
  return *engines_.emplace_back(std::move(engine));
}

InferMetrics& Metrics::AddInferEngine(std::string_view model_name) {
  auto engine = std::make_unique<InferMetrics>(*registry_, model_name);
  std::lock_guard lock(mutex_);
  return *infer_engines_.emplace_back(std::move(engine));
}

void Metrics::WatchGpus() {
  auto gpus = GpuMetrics::Open();
  std::lock_guard lock(mutex_);
  gpus_ = std::move(gpus);
}

void Metrics::SetReady(bool ready) { ready_->Set(ready ? 1 : 0); }

void Metrics::OnHttpConnectionOpened() {
  http_connections_opened_->Increment();
  http_connections_->Increment();
}

void Metrics::OnHttpConnectionClosed() { http_connections_->Decrement(); }

std::string Metrics::Render() const {
  std::vector<prometheus::MetricFamily> families = registry_->Collect();
  const auto append = [&families](std::vector<prometheus::MetricFamily> more) {
    for (prometheus::MetricFamily& family : more) families.push_back(std::move(family));
  };
  append(CollectProcessMetrics());
  prometheus::ClientMetric dropped;
  dropped.counter.value = static_cast<double>(DroppedLogLines());
  append({{"millrace_log_lines_dropped_total",
           "Log lines that were lost because stderr was not read.",
           prometheus::MetricType::Counter,
           {std::move(dropped)}}});
  {
    std::lock_guard lock(mutex_);
    if (gpus_ != nullptr) append(gpus_->Collect());
  }
  if (tenants_) AppendTenants(tenants_(), families);
  return MetricsText(families);
}

}  // namespace millrace
