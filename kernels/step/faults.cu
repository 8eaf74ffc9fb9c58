#include "kernels/step/faults.h"

#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

__global__ void Trap() {
  AwaitPredecessor();
  __trap();
}

__global__ void Hang() {
  AwaitPredecessor();
  for (;;) __nanosleep(1000);
}

}  // namespace

cudaError_t LaunchTrap(cudaStream_t stream) { return LaunchDependent(Trap, 1, 1, 0, stream); }

cudaError_t LaunchHang(cudaStream_t stream) { return LaunchDependent(Hang, 1, 1, 0, stream); }

}  // namespace millrace::kernels
