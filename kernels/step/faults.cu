#include "kernels/step/faults.h"

#include <cstdint>

#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

__global__ void Trap() {
  AwaitPredecessor();
  __trap();
}

__global__ void Hang() {
  AwaitPredecessor();
  constexpr uint64_t kNanoseconds = uint64_t{600} * 1'000'000'000;
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    __nanosleep(1000);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < kNanoseconds);
}

}  // namespace

cudaError_t LaunchTrap(cudaStream_t stream) { return LaunchDependent(Trap, 1, 1, 0, stream); }

cudaError_t LaunchHang(cudaStream_t stream) { return LaunchDependent(Hang, 1, 1, 0, stream); }

}  // namespace millrace::kernels
