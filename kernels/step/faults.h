// What goes wrong on a GPU, on purpose: for tests of what happens then.
#ifndef MILLRACE_KERNELS_STEP_FAULTS_H_
#define MILLRACE_KERNELS_STEP_FAULTS_H_

#include <cuda_runtime_api.h>

namespace millrace::kernels {

// A kernel that traps: every call of this process to the device fails from then on.
cudaError_t LaunchTrap(cudaStream_t stream);

// A kernel that ends after ten minutes: for whoever waits, never; but a GPU is not lost to it.
cudaError_t LaunchHang(cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_STEP_FAULTS_H_
