#include "server/doctor/gpu_driver.h"

#include <dlfcn.h>

#include <memory>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

// The parts of nvml.h that are used here; its ABI does not change.
constexpr unsigned kNameBytes = 96;
constexpr unsigned kVersionBytes = 80;
struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

// The functions of the library, opened once and never closed.
class Nvml {
 public:
  static absl::StatusOr<Nvml> Open() {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return absl::NotFoundError("there is no libnvidia-ml.so.1");
    Nvml nvml(library);
    MILLRACE_RETURN_IF_ERROR(nvml.Call<int()>("nvmlInit_v2"));
    return nvml;
  }

  // Calls a function that returns 0 if all is well.
  template <typename Function, typename... Arguments>
  absl::Status Call(const char* name, Arguments... arguments) const {
    auto* const function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (function == nullptr) {
      return absl::UnavailableError(StrCat("libnvidia-ml.so.1 has no ", name));
    }
    const int code = function(arguments...);
    if (code == 0) return absl::OkStatus();
    return absl::UnavailableError(StrCat(name, " of libnvidia-ml.so.1 failed with ", code));
  }

 private:
  explicit Nvml(void* library) : library_(library) {}
  void* library_;
};

absl::StatusOr<GpuFacts> ReadGpu(const Nvml& nvml, unsigned index) {
  void* device = nullptr;
  MILLRACE_RETURN_IF_ERROR(
      nvml.Call<int(unsigned, void**)>("nvmlDeviceGetHandleByIndex_v2", index, &device));
  char name[kNameBytes] = {};
  MILLRACE_RETURN_IF_ERROR(
      nvml.Call<int(void*, char*, unsigned)>("nvmlDeviceGetName", device, name, kNameBytes));
  Memory memory = {};
  MILLRACE_RETURN_IF_ERROR(
      nvml.Call<int(void*, Memory*)>("nvmlDeviceGetMemoryInfo", device, &memory));
  GpuFacts gpu{.name = name, .total = memory.total, .free = memory.free};
  MILLRACE_RETURN_IF_ERROR(nvml.Call<int(void*, int*, int*)>("nvmlDeviceGetCudaComputeCapability",
                                                             device, &gpu.major, &gpu.minor));
  return gpu;
}

}  // namespace

absl::StatusOr<DriverFacts> ReadDriver() {
  MILLRACE_ASSIGN_OR_RETURN(const Nvml nvml, Nvml::Open());
  char version[kVersionBytes] = {};
  MILLRACE_RETURN_IF_ERROR(
      nvml.Call<int(char*, unsigned)>("nvmlSystemGetDriverVersion", version, kVersionBytes));
  unsigned count = 0;
  MILLRACE_RETURN_IF_ERROR(nvml.Call<int(unsigned*)>("nvmlDeviceGetCount_v2", &count));
  DriverFacts facts{.version = version};
  for (unsigned i = 0; i < count; ++i) {
    MILLRACE_ASSIGN_OR_RETURN(GpuFacts gpu, ReadGpu(nvml, i));
    facts.gpus.push_back(std::move(gpu));
  }
  return facts;
}

}  // namespace millrace
