// The gated activation with a scale per token, by clusters of CTAs (sm_90 and later).
#ifndef MILLRACE_KERNELS_SM90_GATED_ACTIVATION_H_
#define MILLRACE_KERNELS_SM90_GATED_ACTIVATION_H_

#include <cuda_runtime_api.h>

#include "kernels/elementwise/gated_activation.h"

namespace millrace::kernels {

// As LaunchGatedActivation, with the same bits. With Scaling::kToken a row needs its maximum before
// it can be written, which binds the portable kernel to one SM a row; here up to eight CTAs hold
// the row in their registers and exchange maxima through distributed shared memory. That pays while
// the rows are fewer than the SMs: many rows, and other scalings, go to the portable kernels.
cudaError_t LaunchGatedActivationSm90(const GatedActivationArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_SM90_GATED_ACTIVATION_H_
