#include "kernels/step/faults.h"

namespace millrace::kernels {
namespace {

__global__ void Trap() { __trap(); }

__global__ void Hang() {
  for (;;) __nanosleep(1000);
}

}  // namespace

cudaError_t LaunchTrap(cudaStream_t stream) {
  Trap<<<1, 1, 0, stream>>>();
  return cudaGetLastError();
}

cudaError_t LaunchHang(cudaStream_t stream) {
  Hang<<<1, 1, 0, stream>>>();
  return cudaGetLastError();
}

}  // namespace millrace::kernels
