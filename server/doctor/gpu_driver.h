// Reads the NVIDIA driver's own account of the GPUs, without CUDA: also a server that was built
// without it can say what is there.
#ifndef MILLRACE_SERVER_DOCTOR_GPU_DRIVER_H_
#define MILLRACE_SERVER_DOCTOR_GPU_DRIVER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace {

struct GpuFacts {
  std::string name;
  uint64_t total = 0;  // bytes
  uint64_t free = 0;
  int major = 0;  // of the compute capability
  int minor = 0;
};

struct DriverFacts {
  std::string version;         // "580.159.04"
  std::vector<GpuFacts> gpus;  // in the driver's order, which CUDA_VISIBLE_DEVICES does not change
};

// Asks libnvidia-ml. NotFound: there is no such library, so no driver; Unavailable: it is there and
// refuses, with its number.
absl::StatusOr<DriverFacts> ReadDriver();

}  // namespace millrace

#endif  // MILLRACE_SERVER_DOCTOR_GPU_DRIVER_H_
