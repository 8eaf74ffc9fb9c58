// How the SMs share a dense linear with four-bit weights: which of grouped_kernel.cuh's kernels
// multiplies it, by how many tokens at a time, and when it is faster to expand the weight to BF16.
// None of it changes a bit of the result.
//
// Estimates count rounds: the tiles that the SMs have at the same time. A round takes as long for
// few tokens of a tile as for many, so an estimate never falls as tokens are added. Its figures
// were measured on an H200 (docs/experiments/experts.md).
#ifndef MILLRACE_KERNELS_GEMM_SM90_GROUPED_DENSE_TILES_H_
#define MILLRACE_KERNELS_GEMM_SM90_GROUPED_DENSE_TILES_H_

#include <cstdint>

namespace millrace::kernels::sm90 {

// How the warps of an SM share a linear with four-bit weights. With many tokens two CTAs of four
// warps leave the tensor cores idle while they unpack.
enum class DenseTiles : uint8_t {
  kNone,        // CTAs of their own take tiles of 64 rows; all other linears, too
  kTurns,       // teams of warps take turns at a tile (grouped_turns.cuh)
  kGroupTurns,  // the same of experts with few tokens, and of dense linears in several tiles of up
                // to 16 tokens
  kWide,        // groups of four warps, of 64 rows each, multiply the same inputs: four groups, or
                // two by kWideTokens
  kGroupWide    // the same of experts with many tokens: three groups
};

inline constexpr int kWideTokens = 128;

// Returns the kernel for tiles of 32, 64 or kWideTokens tokens. `blocks`: of 64 rows of the weight.
DenseTiles FastestDenseTiles(int64_t blocks, int64_t stride, int tokens, int tile_tokens,
                             int64_t sms);

// Returns the tokens of the fastest tile for more than 64 tokens: 64 or kWideTokens.
int FastestDenseTokens(int64_t blocks, int64_t stride, int tokens, int64_t sms);

// Returns whether expanding the weight and multiplying by BF16 is faster, for more than 128 tokens.
bool ExpandingIsFaster(int64_t blocks, int64_t stride, int tokens, int64_t sms);

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_GROUPED_DENSE_TILES_H_
