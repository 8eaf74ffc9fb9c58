// Ranges that a profiler shows on its time line (NVTX, as Nsight Systems reads it), in the domain
// "millrace". Without one attached each costs a few nanoseconds.
#ifndef MILLRACE_EXECUTORS_CUDA_RANGES_H_
#define MILLRACE_EXECUTORS_CUDA_RANGES_H_

#include <nvtx3/nvtx3.hpp>

namespace millrace::cuda {

struct RangeDomain {
  static constexpr const char* name = "millrace";
};

// What this thread does for as long as the object lives; ranges nest.
using Range = nvtx3::scoped_range_in<RangeDomain>;

// What goes on for as long as the object lives, whatever else does; it can be moved.
using LongRange = nvtx3::unique_range_in<RangeDomain>;

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_RANGES_H_
