// A linear of 17 to 256 tokens on Hopper whose weights have scales of 128 x 128 blocks:
// stream_linear.h's promise for more tokens, where cuBLASLt has one algorithm, which is slow.
//
// Exact as linear.h says, with the bits of cuBLASLt for every number of tokens and every choice
// below (the tests compare).
//
// Ideas: as stream_linear.h; sums of 128 products, scaled in turns of two, as DeepGEMM.
#ifndef MILLRACE_KERNELS_GEMM_SM90_BLOCK_LINEAR_H_
#define MILLRACE_KERNELS_GEMM_SM90_BLOCK_LINEAR_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "kernels/gemm/linear.h"
#include "kernels/gemm/sm90/own_linear.h"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

inline constexpr int kMostBlockTokens = 256;

// What a CTA computes at a time. More tokens are divided into equal parts.
struct BlockTile {
  int rows, tokens;

  friend bool operator==(const BlockTile&, const BlockTile&) = default;
};

// How a product is divided. None changes a bit of the result.
struct BlockChoice {
  BlockTile tile;  // one of those in block_launch.cuh
  int stages;      // of its ring in shared memory, at least 2; fewer where they do not fit
  int ctas;        // at most
};

// What is fastest, as measured on an H200; nothing where stream_linear.h (few tokens) or cuBLASLt
// (many) is, for other scales, and where there is no such kernel, as ChooseStream says.
std::optional<BlockChoice> ChooseBlock(const LinearShape& shape, int64_t tokens);

// Of 1 ... kMostBlockTokens tokens, FP8 with kBlock and kTokenGroup. The ticket is not used.
struct BlockLinearArgs : OwnLinear {
  BlockChoice choice;
};

// Writes the tokens' rows alone. Launched for programmatic dependent launch, as LaunchStreamLinear;
// the weights' scales are constant, too. cudaErrorNotSupported where the device is not Hopper.
cudaError_t LaunchBlockLinear(const BlockLinearArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_BLOCK_LINEAR_H_
