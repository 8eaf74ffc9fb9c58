// A linear of 17 to 256 tokens on Hopper whose weights have scales of 128 x 128 blocks:
// skinny_linear.h's promise for more tokens, where cuBLASLt has one algorithm, which is slow.
//
// Exact as linear.h says, with the bits of cuBLASLt for every number of tokens and every
// config (the tests compare).
//
// Ideas: as skinny_linear.h; sums of 128 products, scaled two of which alternate, as in DeepGEMM.
#ifndef MILLRACE_KERNELS_GEMM_SM90_DENSE_BLOCK_LINEAR_H_
#define MILLRACE_KERNELS_GEMM_SM90_DENSE_BLOCK_LINEAR_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "kernels/gemm/gemm_desc.h"
#include "kernels/gemm/sm90/own_linear.h"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

inline constexpr int kMaxBlockTokens = 256;

// Returns the tiles that there are kernels for.
std::vector<BlockTile> BlockTiles();

// The arguments for 1 ... kMaxBlockTokens tokens, FP8 with kBlock and kTokenGroup. The tile counter
// is not used.
struct BlockLinearArgs : OwnLinear {
  BlockConfig config;
};

// Writes the tokens' rows alone. Launched for programmatic dependent launch, as LaunchSkinnyLinear;
// the weights' scales are constant, too. cudaErrorNotSupported where the device is not Hopper.
cudaError_t LaunchBlockLinear(const BlockLinearArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_DENSE_BLOCK_LINEAR_H_
