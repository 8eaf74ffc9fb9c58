// A linear of few tokens on Hopper, at the speed of the memory:
// y[tokens][rows] = x[tokens][stride] . W[rows][stride]^T.
//
// Exact as linear.h says: K is summed in sequence and unsplit, in the order and with the roundings
// of cuBLASLt's unsplit algorithms (FP8: those without fast accumulation), so a row of y is the
// same bits for every number of tokens, every config, and from cuBLASLt (the tests compare).
//
// Weights are read where they lie, in plain rows, once. Launched for programmatic dependent launch
// (launch.cuh): reads weights before the kernel before it has ended, so they must be constant while
// steps run. Ideas: CUTLASS's warp-specialized kernels (TMA, one copying warp), TurboMind's small-M
// kernels (weights as wgmma's 64-row side).
#ifndef MILLRACE_KERNELS_GEMM_SM90_DENSE_SKINNY_LINEAR_H_
#define MILLRACE_KERNELS_GEMM_SM90_DENSE_SKINNY_LINEAR_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/gemm/gemm_desc.h"
#include "kernels/gemm/linear.h"
#include "kernels/gemm/sm90/own_linear.h"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

inline constexpr int kMaxSkinnyTokens = 16;

// The arguments for 1 ... kMaxSkinnyTokens tokens.
struct SkinnyLinearArgs : OwnLinear {
  SkinnyConfig config;
  const InputRow* input_row = nullptr;  // of one token of up to kMaxPrologueWidth
};

// Scalar scales and those of blocks are applied, those of channels and tokens are left to the
// reader, as LaunchLinear does. Block scales of weights are constant, too; an input row cannot be
// computed with them. Writes the tokens' rows alone. cudaErrorNotSupported where the device is not
// Hopper.
cudaError_t LaunchSkinnyLinear(const SkinnyLinearArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_DENSE_SKINNY_LINEAR_H_
