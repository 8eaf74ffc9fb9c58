// One rank's side of an all-gather. Tests launch it with delays, and as one grid that plays all
// ranks.
#ifndef MILLRACE_KERNELS_COLLECTIVE_ALL_GATHER_KERNEL_CUH_
#define MILLRACE_KERNELS_COLLECTIVE_ALL_GATHER_KERNEL_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/collective/all_gather.h"
#include "kernels/collective/wire.cuh"
#include "kernels/delay.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels {

inline constexpr int kAllGatherThreads = 128;

// Two 64-bit words on the wire, each 32 bits of data below 32 bits that are zeros. Empty memory has
// ones there.
__device__ inline ulonglong2 ToPair(uint2 data) { return {data.x, data.y}; }
__device__ inline uint2 FromPair(const ulonglong2& pair) {
  return make_uint2(static_cast<uint32_t>(pair.x), static_cast<uint32_t>(pair.y));
}
__device__ inline bool IsComplete(const ulonglong2& pair) {
  return (pair.x >> 32 | pair.y >> 32) == 0;
}

// Runs CTA `cta` of `ctas` of one rank. Each thread takes 8 bytes at a time.
template <int kRanks, typename Delay>
__device__ void AllGatherRecords(const AllGatherArgs& args, int cta, int ctas) {
  const Communicator& c = args.communicator;
  if (c.release_early) ReleaseDependents();
  WaitForPredecessor();

  Call call(c);
  const uint2* records = static_cast<const uint2*>(args.records);
  uint2* gathered = static_cast<uint2*>(args.gathered);
  const uint32_t record = args.record_bytes / 8;
  const uint32_t total = args.rows * record;
  const uint32_t first = cta * blockDim.x + threadIdx.x, step = ctas * blockDim.x;
  Delay::Wait();
  for (uint32_t i = first; i < total; i += step) {
    const ulonglong2 pair = ToPair(records[i]);
#pragma unroll
    for (int to = 1; to < kRanks; ++to) {
      if (to < c.ranks) StoreWirePair(call.Slot(call.Peer(to), c.rank) + i, pair);
    }
  }
  call.Arrive(ctas);
  Delay::Wait();
  for (uint32_t i = first; i < total; i += step) {
    ulonglong2 all[kRanks];
    const ulonglong2 own = ToPair(records[i]);
    int missing;
    do {
      missing = -1;
#pragma unroll
      for (int from = 0; from < kRanks; ++from) {
        all[from] =
            from < c.ranks && from != c.rank ? LoadWirePair(call.Slot(c.rank, from) + i) : own;
      }
#pragma unroll
      for (int from = 0; from < kRanks; ++from) {
        if (!IsComplete(all[from])) missing = from;
      }
    } while (missing >= 0 && call.MayWait(missing));
    const uint32_t row = i / record;
#pragma unroll
    for (int from = 0; from < kRanks; ++from) {
      if (from >= c.ranks) continue;
      if (from != c.rank) StoreWire(call.Slot(c.rank, from) + i, Nothing());
      gathered[(static_cast<int64_t>(row) * c.ranks + from) * record + i - row * record] =
          FromPair(all[from]);
    }
  }
  call.ReleaseWhenReceived();
  Delay::Wait();
  call.Finish();
}

template <int kRanks, typename Delay>
__global__ void __launch_bounds__(kAllGatherThreads)
    AllGatherKernel(const __grid_constant__ AllGatherArgs args) {
  AllGatherRecords<kRanks, Delay>(args, blockIdx.x, gridDim.x);
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_COLLECTIVE_ALL_GATHER_KERNEL_CUH_
