#include <cuda_runtime.h>

#include "kernels/launch.cuh"

namespace millrace::kernels {

bool KernelsAwait() {
#ifdef MILLRACE_KERNELS_SM90A
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major == 9;
#else
  return false;
#endif
}

}  // namespace millrace::kernels
