// The rate at which the device can read its memory, beside which benchmarks put what a step
// reaches.
#ifndef MILLRACE_EXECUTORS_CUDA_DEVICE_READ_RATE_H_
#define MILLRACE_EXECUTORS_CUDA_DEVICE_READ_RATE_H_

#include <optional>

#include "executors/cuda/device/device.h"

namespace millrace::cuda {

// Reads `memory`, or its first 2 GiB, with the kernel that the kernels' benchmarks measure by, and
// returns the bytes per second of the best number of CTAs. Nothing if the memory is less than
// 256 MiB, of which a cache may hold much, or if the device fails. Nothing else may run meanwhile.
std::optional<double> MeasureReadRate(const DeviceMemory& memory);

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_DEVICE_READ_RATE_H_
