// Delays at the barriers of kernels with communicating warps. They are a template parameter, so
// that tests can show that no warp relies on another's speed.
#ifndef MILLRACE_KERNELS_DELAY_CUH_
#define MILLRACE_KERNELS_DELAY_CUH_

#include <cstdint>

#include "kernels/device_util.cuh"

namespace millrace::kernels {

struct NoDelay {
  __device__ static void Wait() {}
  // Called by the decode kernel for each tile of which it reads something ahead, so that a test can
  // count them.
  __device__ static void ReadAhead() {}
};

// Waits up to some thousand cycles, differently each time, since the clock differs between calls
// and SMs.
struct RandomDelay : NoDelay {
  __device__ static void Wait() {
    uint32_t bits = static_cast<uint32_t>(clock64()) * 0x9e3779b9u + blockIdx.x * 0x85ebca6bu +
                    threadIdx.x / kWarpSize * 0xc2b2ae35u;
    bits ^= bits >> 15;
    if (bits % 4 == 0) __nanosleep(bits / 4 % 4096);
  }
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_DELAY_CUH_
