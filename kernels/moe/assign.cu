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
constexpr int kInFlight = 8;  // of a thread's loads

// The rows and tiles of a CTA's group, and where they begin: the sums over the groups before it.
struct Place {
  int rows, first_row;
  int tiles, first_tile;
};

// A bit for each pair: whether it belongs to the CTA's group.
using Marks = unsigned[kMaxPairs / kWarpSize];

// Counts the pairs of all groups, and marks those of `group`. Reads ids once: they come from the L2
// cache.
__device__ void Count(const AssignArgs& args, int group, int (&counts)[kMaxAssignedGroups],
                      Marks& marks) {
  counts[threadIdx.x] = 0;
  __syncthreads();
  const int lane = threadIdx.x % kWarpSize, pairs = args.rows.pairs;
  for (int first = static_cast<int>(threadIdx.x) - lane; first < pairs;
       first += kThreads * kInFlight) {
    int of_pairs[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int pair = first + i * kThreads + lane;
      of_pairs[i] = pair < pairs ? args.ids[pair] - args.first_expert : -1;
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int word = (first + i * kThreads) / kWarpSize, other = of_pairs[i];
      if (first + i * kThreads >= pairs) break;
      const unsigned mine = __ballot_sync(kFullWarp, other == group);
      if (lane == 0) marks[word] = mine;
      if (other >= 0 && other < args.rows.groups) atomicAdd(&counts[other], 1);
    }
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

// Returns the sum of `value` over the threads before this one.
__device__ int SumBefore(int value) {
  __shared__ int of_warps[kWarps];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  int sum = value;  // of the lanes up to this one
#pragma unroll
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const int other = __shfl_up_sync(kFullWarp, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == kWarpSize - 1) of_warps[warp] = sum;
  __syncthreads();
  int before = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) before += of_warps[i];
  }
  return before + sum - value;
}

// Writes the group's pairs in ascending order: a thread those of neighbouring words.
__device__ void WriteOrder(const AssignArgs& args, const Place& place, const Marks& marks) {
  const int words = CeilDiv(args.rows.pairs, kWarpSize), own_words = CeilDiv(words, kThreads);
  const int begin = static_cast<int>(threadIdx.x) * own_words;
  const int end = min(begin + own_words, words);
  int rows = 0;
  for (int i = begin; i < end; ++i) rows += __popc(marks[i]);
  int at = place.first_row + SumBefore(rows);
  for (int i = begin; i < end; ++i) {
    for (unsigned left = marks[i]; left != 0; left &= left - 1) {
      args.rows.order[at++] = i * kWarpSize + __ffs(static_cast<int>(left)) - 1;
    }
  }
}

// A CTA for each group.
__global__ void __launch_bounds__(kThreads) AssignKernel(AssignArgs args) {
  __shared__ int counts[kMaxAssignedGroups];
  __shared__ Marks marks;
  const int group = static_cast<int>(blockIdx.x);
  AwaitPredecessor();
  Count(args, group, counts, marks);
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
  if (group + 1 == args.rows.groups) {
    const int touched = __syncthreads_count(counts[threadIdx.x] > 0);
    if (threadIdx.x == 0) AddTouched(args, touched);
  }
  WriteOrder(args, place, marks);
}

__global__ void __launch_bounds__(kAssignThreads) AssignFewKernel(AssignArgs args) {
  __shared__ AssignFewShared shared;
  AwaitPredecessor();
  const int thread = static_cast<int>(threadIdx.x);
  AssignFew(args, thread < args.rows.pairs ? __ldcg(args.ids + thread) : 0, shared);
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
