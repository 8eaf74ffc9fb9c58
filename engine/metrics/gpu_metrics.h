// Memory and power of the machine's NVIDIA GPUs, as its management library (NVML) tells them.
#ifndef MILLRACE_ENGINE_METRICS_GPU_METRICS_H_
#define MILLRACE_ENGINE_METRICS_GPU_METRICS_H_

#include <prometheus/metric_family.h>

#include <memory>
#include <vector>

namespace millrace {

// The driver brings the library, which is therefore loaded and not linked. Thread-safe.
class GpuMetrics {
 public:
  virtual ~GpuMetrics() = default;

  // Returns nullptr where the library or a function of it is missing, or does not begin.
  static std::unique_ptr<GpuMetrics> Open(const char* library = "libnvidia-ml.so.1");

  // Returns what each GPU says now; what one does not tell is left out.
  virtual std::vector<prometheus::MetricFamily> Collect() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_METRICS_GPU_METRICS_H_
