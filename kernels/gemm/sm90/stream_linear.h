// A linear of few tokens on Hopper, at the speed of the memory:
// y[tokens][rows] = x[tokens][stride] . W[rows][stride]^T.
//
// Exact as linear.h says: K is summed in sequence and unsplit, in the order and with the roundings
// of cuBLASLt's unsplit algorithms (FP8: those without fast accumulation), so a row of y is the
// same bits for every number of tokens, every choice below, and from cuBLASLt (the tests compare).
//
// Weights are read where they lie, in plain rows, once. Launched for programmatic dependent launch
// (launch.cuh): reads weights before the kernel before it has ended, so they must be constant while
// steps run. Ideas: CUTLASS's warp-specialized kernels (TMA, one copying warp), TurboMind's small-M
// kernels (weights as wgmma's 64-row side).
#ifndef MILLRACE_KERNELS_GEMM_SM90_STREAM_LINEAR_H_
#define MILLRACE_KERNELS_GEMM_SM90_STREAM_LINEAR_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "kernels/gemm/linear.h"
#include "kernels/gemm/sm90/own_linear.h"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

inline constexpr int kMostStreamTokens = 16;

// How a product is divided. None changes a bit of the result.
struct StreamChoice {
  int stages;  // of a CTA's ring in shared memory, at least 2; fewer where they do not fit
  int ctas;    // at most
};

// What is fastest, as measured on an H200; nothing for more tokens, and where the device or the
// build is not for Hopper.
std::optional<StreamChoice> ChooseStream(const LinearShape& shape, int64_t tokens);

// Of 1 ... kMostStreamTokens tokens.
struct StreamLinearArgs : OwnLinear {
  StreamChoice choice;
  const InputRow* input_row = nullptr;  // of one token of up to kMostMadeInputs
};

// Scalar scales and those of blocks are applied, those of channels and tokens are left to the
// reader, as LaunchLinear does. Block scales of weights are constant, too; an input row is not made
// with them. Writes the tokens' rows alone. cudaErrorNotSupported where the device is not Hopper.
cudaError_t LaunchStreamLinear(const StreamLinearArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_STREAM_LINEAR_H_
