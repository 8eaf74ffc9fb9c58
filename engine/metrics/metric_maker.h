// Makes metrics of one set of labels.
#ifndef MILLRACE_ENGINE_METRICS_METRIC_MAKER_H_
#define MILLRACE_ENGINE_METRICS_METRIC_MAKER_H_

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <cstddef>
#include <utility>

namespace millrace {

// The metrics belong to the registry, which outlives this. `more` has labels beside those of all.
class MetricMaker {
 public:
  using Buckets = prometheus::Histogram::BucketBoundaries;
  using Labels = prometheus::Labels;

  MetricMaker(prometheus::Registry& registry, Labels labels)
      : registry_(registry), labels_(std::move(labels)) {}

  // Returns the bounds of histograms of requests' times, in seconds.
  static const Buckets& RequestTimes() {
    static const auto* const buckets = new Buckets{
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1,   1.5,  2,
        2.5,    5,     10,     15,    20,   30,    40,   50,  60,  120, 240, 480, 960, 1920, 7680};
    return *buckets;
  }

  prometheus::Gauge* Gauge(const char* name, const char* help, const Labels& more = {}) const {
    return &prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(With(more));
  }
  prometheus::Counter* Counter(const char* name, const char* help, const Labels& more = {}) const {
    return &prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(With(more));
  }
  // One for each value of the label, in their order: all are exposed from the start, at 0.
  template <size_t kCount>
  std::array<prometheus::Counter*, kCount> Counters(
      const char* name, const char* help, const char* label,
      const std::array<const char*, kCount>& values) const {
    std::array<prometheus::Counter*, kCount> counters;
    for (size_t i = 0; i < kCount; ++i) counters[i] = Counter(name, help, {{label, values[i]}});
    return counters;
  }
  prometheus::Histogram* Histogram(const char* name, const char* help,
                                   const Buckets& buckets) const {
    return &prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add(labels_,
                                                                                       buckets);
  }

 private:
  Labels With(const Labels& more) const {
    Labels all = labels_;
    all.insert(more.begin(), more.end());
    return all;
  }

  prometheus::Registry& registry_;
  const Labels labels_;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_METRICS_METRIC_MAKER_H_
