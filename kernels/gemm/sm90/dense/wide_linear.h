// A linear of 17 to 128 tokens on Hopper: skinny_linear.h's promise for more tokens, where a CTA
// takes in as much of the inputs as of the weights.
//
// Exact as linear.h says, with the bits of cuBLASLt's unsplit algorithms (FP8: those without fast
// accumulation) for every number of tokens and every config (the tests compare).
//
// Ideas: as skinny_linear.h; clusters that share weights as nvJet does at 64 tokens; FP8's sums of
// 128 products two of which alternate, as in DeepGEMM.
#ifndef MILLRACE_KERNELS_GEMM_SM90_DENSE_WIDE_LINEAR_H_
#define MILLRACE_KERNELS_GEMM_SM90_DENSE_WIDE_LINEAR_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "kernels/gemm/gemm_desc.h"
#include "kernels/gemm/sm90/own_linear.h"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

inline constexpr int kMaxWideTokens = 128;

// Returns the tiles that there are kernels for.
std::vector<WideTile> WideTiles();

// The arguments for 1 ... kMaxWideTokens tokens.
struct WideLinearArgs : OwnLinear {
  WideConfig config;
};

// Scalar scales are applied, those of channels and tokens are left to the reader, as LaunchLinear
// does. Writes the tokens' rows alone. Launched for programmatic dependent launch, as
// LaunchSkinnyLinear. cudaErrorNotSupported where the device is not Hopper.
cudaError_t LaunchWideLinear(const WideLinearArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_DENSE_WIDE_LINEAR_H_
