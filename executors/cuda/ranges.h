// Profiler ranges (NVTX, shown by Nsight Systems) in the domain "millrace". Without a profiler
// attached each costs a few nanoseconds.
#ifndef MILLRACE_EXECUTORS_CUDA_RANGES_H_
#define MILLRACE_EXECUTORS_CUDA_RANGES_H_

#include <nvtx3/nvtx3.hpp>

namespace millrace::cuda {

struct RangeDomain {
  static constexpr const char* name = "millrace";
};

// Marks an activity of this thread for the lifetime of the object. Ranges nest.
using Range = nvtx3::scoped_range_in<RangeDomain>;

// Marks an activity for the lifetime of the object, independent of threads and nesting. Movable.
using LongRange = nvtx3::unique_range_in<RangeDomain>;

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_RANGES_H_
