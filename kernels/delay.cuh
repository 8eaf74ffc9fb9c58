// Delays at the barriers of a kernel whose warps wait for one another: a template parameter of it,
// so that a test may see that none of them relies on another's speed.
#ifndef MILLRACE_KERNELS_DELAY_CUH_
#define MILLRACE_KERNELS_DELAY_CUH_

#include <cstdint>

#include "kernels/device_util.cuh"

namespace millrace::kernels {

struct NoDelay {
  __device__ static void Wait() {}
  // Decoding says so for each tile of which something is read ahead: a test may count them.
  __device__ static void ReadAhead() {}
};

// Up to some thousand cycles, otherwise each time; the clock tells the times and SMs apart.
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
