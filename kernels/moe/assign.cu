#include "kernels/moe/assign.h"

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"
#include "kernels/moe/assign_few.cuh"

namespace millrace::kernels {
namespace {

constexpr int kThreads = kMaxAssignedGroups;  // a thread for each group
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kPairsPerThread = 8;  // neighbouring ones, of which a thread keeps the order

// What a group's CTA knows of it and of those before it.
struct Place {
  int rows, first_row;
  int tiles, first_tile;
};

// Counts the pairs of all groups.
__device__ void Count(const AssignArgs& args, int (&counts)[kMaxAssignedGroups]) {
  counts[threadIdx.x] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < args.rows.pairs; i += kThreads) {
    const int group = args.ids[i] - args.first_expert;
    if (group >= 0 && group < args.rows.groups) atomicAdd(&counts[group], 1);
  }
  __syncthreads();
}

// Adds up the groups before this one, a thread for each.
__device__ Place Find(const AssignArgs& args, int group, const int (&counts)[kMaxAssignedGroups]) {
  __shared__ int sums[2];
  const int thread = threadIdx.x;
  if (thread < 2) sums[thread] = 0;
  __syncthreads();
  const int own = thread < group ? counts[thread] : 0;
  const int rows = __reduce_add_sync(kFullWarp, own);
  const int tiles = __reduce_add_sync(kFullWarp, CeilDiv(own, args.rows.tile_rows));
  if (thread % kWarpSize == 0) {
    atomicAdd(&sums[0], rows);
    atomicAdd(&sums[1], tiles);
  }
  __syncthreads();
  return {.rows = counts[group],
          .first_row = sums[0],
          .tiles = CeilDiv(counts[group], args.rows.tile_rows),
          .first_tile = sums[1]};
}

// Returns the sum of `value` over the threads before this one; *total over all.
__device__ int SumBefore(int value, int (&of_warps)[kWarps], int* total) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  int sum = value;  // of the lanes up to this one
#pragma unroll
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const int other = __shfl_up_sync(kFullWarp, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == kWarpSize - 1) of_warps[warp] = sum;
  __syncthreads();
  int before = 0, all = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) before += of_warps[i];
    all += of_warps[i];
  }
  __syncthreads();  // `of_warps` may be written again
  *total = all;
  return before + sum - value;
}

// Writes the group's pairs in ascending order.
__device__ void WriteOrder(const AssignArgs& args, int group, const Place& place) {
  __shared__ int of_warps[kWarps];
  const int pairs = args.rows.pairs;
  int written = 0;
  for (int first = 0; first < pairs && written < place.rows; first += kThreads * kPairsPerThread) {
    const int begin = first + static_cast<int>(threadIdx.x) * kPairsPerThread;
    unsigned mine = 0;  // a bit for each pair
#pragma unroll
    for (int i = 0; i < kPairsPerThread; ++i) {
      const int pair = begin + i;
      if (pair < pairs && args.ids[pair] - args.first_expert == group) mine |= 1u << i;
    }
    int total;
    int at = place.first_row + written + SumBefore(__popc(mine), of_warps, &total);
#pragma unroll
    for (int i = 0; i < kPairsPerThread; ++i) {
      if (mine >> i & 1) args.rows.order[at++] = begin + i;
    }
    written += total;
  }
}

// A CTA for each group.
__global__ void __launch_bounds__(kThreads) AssignKernel(AssignArgs args) {
  __shared__ int counts[kMaxAssignedGroups];
  const int group = static_cast<int>(blockIdx.x);
  AwaitPredecessor();
  Count(args, counts);
  const Place place = Find(args, group, counts);
  const GroupTile tile = {.group = group,
                          .first_tile = place.first_tile,
                          .first_row = place.first_row,
                          .rows = place.rows};
  for (int i = threadIdx.x; i < place.tiles; i += kThreads) {
    args.rows.tiles[place.first_tile + i] = tile;
  }
  if (threadIdx.x == 0) {
    args.rows.offsets[group] = place.first_row;
    if (group + 1 == args.rows.groups) {
      args.rows.offsets[group + 1] = place.first_row + place.rows;
      *args.rows.tile_count = place.first_tile + place.tiles;
    }
  }
  WriteOrder(args, group, place);
}

__global__ void __launch_bounds__(kAssignThreads) AssignFewKernel(AssignArgs args) {
  __shared__ AssignFewShared shared;
  AwaitPredecessor();
  AssignFew(args, shared);
}

}  // namespace

bool IsValid(const AssignArgs& args) {
  const GroupedRows& rows = args.rows;
  return args.ids != nullptr && args.first_expert >= 0 && rows.pairs >= 0 &&
         rows.pairs <= kMaxPairs && rows.groups >= 1 && rows.groups <= kMaxAssignedGroups &&
         rows.tile_rows >= 1 && rows.order != nullptr && rows.offsets != nullptr &&
         rows.tiles != nullptr && IsAligned16(rows.tiles) && rows.tile_count != nullptr;
}

cudaError_t LaunchAssign(const AssignArgs& args, cudaStream_t stream) {
  if (!IsValid(args)) return cudaErrorInvalidValue;
  if (args.rows.pairs <= kFewPairs) {
    return LaunchDependent(AssignFewKernel, dim3(1), dim3(kAssignThreads), 0, stream, args);
  }
  return LaunchDependent(AssignKernel, dim3(args.rows.groups), dim3(kThreads), 0, stream, args);
}

}  // namespace millrace::kernels
