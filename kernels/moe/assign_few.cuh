// An assignment of few pairs by one CTA: assign.cu's kernel for them, and the end of route.cu's.
#ifndef MILLRACE_KERNELS_MOE_ASSIGN_FEW_CUH_
#define MILLRACE_KERNELS_MOE_ASSIGN_FEW_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/grouped.h"
#include "kernels/moe/assign.h"

namespace millrace::kernels {

inline constexpr int kAssignThreads = 512;  // a thread for each group, and for each of few pairs
static_assert(kAssignThreads >= kMaxAssignedGroups && kAssignThreads >= kFewPairs);

struct AssignFewShared {
  int groups[kFewPairs];  // of pairs; -1: left out
  int counts[kMaxAssignedGroups];
  int rows_before[kMaxAssignedGroups];  // of the groups before this one
  int of_warps[2][kAssignThreads / kWarpSize];
};

// Called by one thread of a launch.
__device__ inline void AddTouched(const AssignArgs& args, int touched) {
  if (args.touched == nullptr) return;
  atomicAdd(args.touched, static_cast<unsigned long long>(touched));  // no thread awaits the sum
}

// Writes args.rows and adds to args.touched. Called by all kAssignThreads threads of a CTA. `id` is
// this thread's pair's, if there is one.
__device__ inline void AssignFew(const AssignArgs& args, int id, AssignFewShared& shared) {
  const GroupedRows& rows = args.rows;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize, warp = thread / kWarpSize;
  shared.counts[thread] = 0;
  __syncthreads();
  int own = -1;  // the group of this thread's pair
  if (thread < rows.pairs) {
    const int group = id - args.first_expert;
    if (group >= 0 && group < rows.groups) own = group;
    shared.groups[thread] = own;
    if (own >= 0) atomicAdd(&shared.counts[own], 1);
  }
  __syncthreads();

  // Sums over the groups before this thread's group, which has its number.
  const int count = shared.counts[thread], tiles = CeilDiv(count, rows.tile_rows);
  int sums[2] = {count, tiles};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const int other = __shfl_up_sync(kFullWarp, sums[i], distance);
      if (lane >= distance) sums[i] += other;
    }
    if (lane == kWarpSize - 1) shared.of_warps[i][warp] = sums[i];
  }
  __syncthreads();
  for (int i = 0; i < warp; ++i) {
    sums[0] += shared.of_warps[0][i];
    sums[1] += shared.of_warps[1][i];
  }
  const int first_row = sums[0] - count, first_tile = sums[1] - tiles;
  shared.rows_before[thread] = first_row;
  if (thread < rows.groups) {
    rows.offsets[thread] = first_row;
    for (int i = 0; i < tiles; ++i) {
      rows.tiles[first_tile + i] = {thread, first_tile, first_row, count};
    }
    if (thread + 1 == rows.groups) {
      rows.offsets[rows.groups] = sums[0];
      *rows.tile_count = sums[1];
    }
  }
  const int touched = __syncthreads_count(count > 0);
  if (thread == 0) AddTouched(args, touched);

  if (own < 0) return;
  int before = 0;  // pairs of the group before this thread's
  for (int i = 0; i < thread; ++i) before += shared.groups[i] == own;
  rows.order[shared.rows_before[own] + before] = thread;
}

// The same for pairs of which no two have one id, as those of one token. `ids` are in shared
// memory.
__device__ inline void AssignDistinct(const AssignArgs& args, const int* ids) {
  const GroupedRows& rows = args.rows;
  for (int group = threadIdx.x; group <= rows.groups; group += kAssignThreads) {
    int before = 0, own = -1;  // pairs of the groups before this one, and this group's
    for (int pair = 0; pair < rows.pairs; ++pair) {
      const int of_pair = ids[pair] - args.first_expert;
      before += of_pair >= 0 && of_pair < group;
      if (of_pair == group) own = pair;
    }
    rows.offsets[group] = before;
    if (group == rows.groups) {
      *rows.tile_count = before;
      AddTouched(args, before);
    } else if (own >= 0) {
      rows.order[before] = own;
      rows.tiles[before] = {group, before, before, 1};
    }
  }
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_MOE_ASSIGN_FEW_CUH_
