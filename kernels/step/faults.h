// GPU faults for tests of error handling.
#ifndef MILLRACE_KERNELS_STEP_FAULTS_H_
#define MILLRACE_KERNELS_STEP_FAULTS_H_

#include <cuda_runtime_api.h>

namespace millrace::kernels {

// Launches a kernel that traps. Every later call of this process to the device fails.
cudaError_t LaunchTrap(cudaStream_t stream);

// Launches a kernel that ends after ten minutes: longer than any test waits, but the GPU recovers.
cudaError_t LaunchHang(cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_STEP_FAULTS_H_
