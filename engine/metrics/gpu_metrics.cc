#include "engine/metrics/gpu_metrics.h"

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "base/strings.h"

namespace millrace {
namespace {

// NVML's interface, as its documentation has it: results of 0 are successes.
using Result = int;
using Device = void*;
struct Memory {
  uint64_t total, free, used;  // bytes
};
struct Utilization {
  unsigned gpu, memory;  // percent
};
constexpr unsigned kTemperatureOfGpu = 0;

class Library final : public GpuMetrics {
 public:
  explicit Library(void* handle) : handle_(handle) {}
  ~Library() override {
    if (begun_) shutdown_();
    dlclose(handle_);
  }

  bool Begin() {
    const bool found =
        Find("nvmlInit_v2", init_) && Find("nvmlShutdown", shutdown_) &&
        Find("nvmlDeviceGetCount_v2", count_) && Find("nvmlDeviceGetHandleByIndex_v2", by_index_) &&
        Find("nvmlDeviceGetUUID", uuid_) && Find("nvmlDeviceGetMemoryInfo", memory_) &&
        Find("nvmlDeviceGetPowerUsage", power_) &&
        Find("nvmlDeviceGetUtilizationRates", utilization_) &&
        Find("nvmlDeviceGetTemperature", temperature_);
    begun_ = found && init_() == 0;
    return begun_;
  }

  std::vector<prometheus::MetricFamily> Collect() override {
    const auto gauge = [](const char* name, const char* help) {
      return prometheus::MetricFamily{name, help, prometheus::MetricType::Gauge, {}};
    };
    auto used =
        gauge("millrace_gpu_memory_used_bytes", "Memory of a GPU in use, by all processes.");
    auto total = gauge("millrace_gpu_memory_total_bytes", "Memory of a GPU.");
    auto watts = gauge("millrace_gpu_power_watts", "Power that a GPU draws.");
    auto busy = gauge("millrace_gpu_utilization_ratio", "Share of time that some kernel ran.");
    auto celsius = gauge("millrace_gpu_temperature_celsius", "Temperature of a GPU.");
    unsigned count = 0;
    if (count_(&count) != 0) count = 0;
    for (unsigned i = 0; i < count; ++i) {
      Device device = nullptr;
      if (by_index_(i, &device) != 0) continue;
      const std::vector<prometheus::ClientMetric::Label> labels = LabelsOf(i, device);
      const auto add = [&](prometheus::MetricFamily& family, double value) {
        prometheus::ClientMetric metric;
        metric.label = labels;
        metric.gauge.value = value;
        family.metric.push_back(std::move(metric));
      };
      if (Memory memory = {}; memory_(device, &memory) == 0) {
        add(used, static_cast<double>(memory.used));
        add(total, static_cast<double>(memory.total));
      }
      if (unsigned milliwatts = 0; power_(device, &milliwatts) == 0)
        add(watts, milliwatts / 1000.0);
      if (Utilization share = {}; utilization_(device, &share) == 0) add(busy, share.gpu / 100.0);
      if (unsigned degrees = 0; temperature_(device, kTemperatureOfGpu, &degrees) == 0) {
        add(celsius, degrees);
      }
    }
    return {std::move(used), std::move(total), std::move(watts), std::move(busy),
            std::move(celsius)};
  }

 private:
  template <typename Function>
  bool Find(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(handle_, name));
    return function != nullptr;
  }

  std::vector<prometheus::ClientMetric::Label> LabelsOf(unsigned index, Device device) const {
    std::array<char, 96> uuid = {};
    if (uuid_(device, uuid.data(), static_cast<unsigned>(uuid.size() - 1)) != 0) uuid[0] = '\0';
    return {{"gpu", StrCat(index)}, {"uuid", uuid.data()}};
  }

  void* const handle_;
  bool begun_ = false;
  Result (*init_)() = nullptr;
  Result (*shutdown_)() = nullptr;
  Result (*count_)(unsigned*) = nullptr;
  Result (*by_index_)(unsigned, Device*) = nullptr;
  Result (*uuid_)(Device, char*, unsigned) = nullptr;
  Result (*memory_)(Device, Memory*) = nullptr;
  Result (*power_)(Device, unsigned*) = nullptr;
  Result (*utilization_)(Device, Utilization*) = nullptr;
  Result (*temperature_)(Device, unsigned, unsigned*) = nullptr;
};

}  // namespace

std::unique_ptr<GpuMetrics> GpuMetrics::Open(const char* library) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return nullptr;
  auto opened = std::make_unique<Library>(handle);
  if (!opened->Begin()) return nullptr;
  return opened;
}

}  // namespace millrace
