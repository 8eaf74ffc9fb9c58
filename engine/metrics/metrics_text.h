// Prometheus' text format 0.0.4, written as Python's client writes it, so that what selects buckets
// by their text (le="1.0") finds the same as on vLLM.
#ifndef MILLRACE_ENGINE_METRICS_METRICS_TEXT_H_
#define MILLRACE_ENGINE_METRICS_METRICS_TEXT_H_

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

namespace millrace {

// Returns a bucket's bound as Python's client writes it: "0.5", "1.0", "1e+06", "+Inf".
std::string BucketBound(double bound);

std::string MetricsText(const std::vector<prometheus::MetricFamily>& families);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_METRICS_METRICS_TEXT_H_
