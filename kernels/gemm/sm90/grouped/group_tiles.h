// How many rows a tile of experts with four-bit weights has. None of it changes a bit of the
// result.
#ifndef MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUP_TILES_H_
#define MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUP_TILES_H_

#include <cstdint>

namespace millrace::kernels::sm90 {

// Returns the rows of the fastest tile where `pairs` rows fall on `groups` groups by chance: 8, 16,
// 32, 64 or kWideTokens. It estimates what the tiles of a group are expected to take, by figures
// that were measured on an H200 (docs/experiments/experts.md).
int FastestGroupTokens(int64_t pairs, int64_t groups);

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUP_TILES_H_
