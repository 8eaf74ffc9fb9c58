// A linear of 17 to 128 tokens on Hopper: stream_linear.h's promise for more tokens, where a CTA
// takes in as much of the inputs as of the weights.
//
// Exact as linear.h says, with the bits of cuBLASLt's unsplit algorithms (FP8: those without fast
// accumulation) for every number of tokens and every choice below (the tests compare).
//
// Ideas: as stream_linear.h; clusters that share weights as nvJet does at 64 tokens; FP8's sums of
// 128 products in turns of two, as DeepGEMM.
#ifndef MILLRACE_KERNELS_GEMM_SM90_WIDE_LINEAR_H_
#define MILLRACE_KERNELS_GEMM_SM90_WIDE_LINEAR_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "kernels/gemm/linear.h"
#include "kernels/gemm/sm90/own_linear.h"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

inline constexpr int kMostWideTokens = 128;

// What a CTA computes at a time. CTAs of a cluster have the same outputs for different tokens, and
// share what they read of the weights.
struct WideTile {
  int rows, tokens, cluster;

  friend bool operator==(const WideTile&, const WideTile&) = default;
};

// How a product is divided. None changes a bit of the result.
struct WideChoice {
  WideTile tile;  // one of those in wide_launch.cuh, whose cluster has room for all tokens
  int stages;     // of its ring in shared memory, at least 2; fewer where they do not fit
  int ctas;       // at most (of whole clusters)
};

// What is fastest, as measured on an H200; nothing where stream_linear.h (few tokens) or cuBLASLt
// (many) is, and where there is no such kernel, as ChooseStream says.
std::optional<WideChoice> ChooseWide(const LinearShape& shape, int64_t tokens);

// Of 1 ... kMostWideTokens tokens.
struct WideLinearArgs : OwnLinear {
  WideChoice choice;
};

// Scalar scales are applied, those of channels and tokens are left to the reader, as LaunchLinear
// does. Writes the tokens' rows alone. Launched for programmatic dependent launch, as
// LaunchStreamLinear. cudaErrorNotSupported where the device is not Hopper.
cudaError_t LaunchWideLinear(const WideLinearArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_WIDE_LINEAR_H_
