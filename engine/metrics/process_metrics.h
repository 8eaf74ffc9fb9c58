// The process's own figures, under the names that Prometheus' client libraries give them.
#ifndef MILLRACE_ENGINE_METRICS_PROCESS_METRICS_H_
#define MILLRACE_ENGINE_METRICS_PROCESS_METRICS_H_

#include <prometheus/metric_family.h>

#include <optional>
#include <vector>

namespace millrace {

// Returns CPU time, memory, open files and start time, read from /proc now. Figures that cannot be
// read are left out.
std::vector<prometheus::MetricFamily> CollectProcessMetrics();

// Returns the seconds since the process was started, to a hundredth; nothing where the system does
// not tell.
std::optional<double> SecondsSinceProcessStart();

}  // namespace millrace

#endif  // MILLRACE_ENGINE_METRICS_PROCESS_METRICS_H_
