// The process's own figures, under the names that Prometheus' client libraries give them.
#ifndef MILLRACE_ENGINE_PROCESS_METRICS_H_
#define MILLRACE_ENGINE_PROCESS_METRICS_H_

#include <prometheus/metric_family.h>

#include <optional>
#include <vector>

namespace millrace {

// CPU time, memory, open files and start time, read from /proc now. What cannot be read is left
// out.
std::vector<prometheus::MetricFamily> CollectProcessMetrics();

// Since the process was made, to a hundredth of a second; nothing where the system does not say.
std::optional<double> SecondsSinceProcessStart();

}  // namespace millrace

#endif  // MILLRACE_ENGINE_PROCESS_METRICS_H_
