// Sorts (token, top-k index) pairs by expert, on the device, as vLLM's moe_align_block_size does.
// Grouped linears read the result (kernels/gemm/grouped.h). `slot` is the top-k index, and `slots`
// is top_k.
#ifndef MILLRACE_KERNELS_MOE_ASSIGN_H_
#define MILLRACE_KERNELS_MOE_ASSIGN_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/gemm/grouped.h"

namespace millrace::kernels {

inline constexpr int kMaxAssignedGroups = 512;
inline constexpr int kMaxPairs = 8192 * 16;
// One CTA makes an assignment of up to so many pairs, and LaunchRoute can make it, too
// (RouteArgs::assign).
inline constexpr int kFewPairs = 512;

// Pair p = token * slots + slot belongs to group ids[p] - first_expert; pairs outside
// [0, rows.groups) are left out, such as those of experts that another rank has. Writes `rows`:
// each group's pairs in ascending order, the groups' offsets, and the list of tiles of at most
// rows.tile_rows rows of one group.
//
// With more than kFewPairs pairs each group has a CTA that counts all pairs by itself, so none
// waits for another. Sums are of integers, so the result is the same each time.
struct AssignArgs {
  const int32_t* ids;  // [rows.pairs], 4-byte aligned
  int first_expert;
  GroupedRows rows;  // up to kMaxPairs pairs and kMaxAssignedGroups groups
  // Gets the number of groups that have a pair added to it, if it is not null. A replayed graph
  // adds each time.
  unsigned long long* touched = nullptr;
};

// Returns whether a launch would accept the arguments.
bool IsValid(const AssignArgs& args);

cudaError_t LaunchAssign(const AssignArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_MOE_ASSIGN_H_
