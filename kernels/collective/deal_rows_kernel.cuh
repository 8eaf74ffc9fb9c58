// One rank's side of a deal of rows. Tests launch it with delays, and as one grid that plays all
// ranks.
#ifndef MILLRACE_KERNELS_COLLECTIVE_DEAL_ROWS_KERNEL_CUH_
#define MILLRACE_KERNELS_COLLECTIVE_DEAL_ROWS_KERNEL_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/collective/deal_rows.h"
#include "kernels/collective/wire.cuh"
#include "kernels/delay.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels {

inline constexpr int kDealRowsThreads = 512;

// Runs CTA `cta` of `ctas` of one rank. Each thread takes some vectors of 16 bytes at a time.
template <int kRanks, typename Delay>
__device__ void DealRows(const DealRowsArgs& args, int cta, int ctas) {
  constexpr int kTogether = kRanks == 8 ? 2 : 4;  // what fits a thread's registers
  const Communicator& c = args.communicator;
  if (c.release_early) ReleaseDependents();
  WaitForPredecessor();

  Call call(c);
  const uint4* columns = reinterpret_cast<const uint4*>(args.columns);
  uint4* whole = reinterpret_cast<uint4*>(args.whole);
  const uint32_t width = args.width / 4;
  const uint32_t total = args.count * width;
  const uint32_t begin = cta * blockDim.x + threadIdx.x, step = ctas * blockDim.x;
  // Returns this rank's columns of the rows that `rank` gets.
  const auto columns_for = [&](int rank) {
    return columns + int64_t{width} * (FirstDealtRow(args.rows, args.share, rank) + args.first);
  };
  // Returns where vector i of `rank`'s columns belongs.
  const auto place = [&](uint32_t i, int rank) {
    const uint32_t row = i / width;
    return whole + (int64_t{args.first + static_cast<int>(row)} * c.ranks + rank) * width + i -
           row * width;
  };
  Delay::Wait();
#pragma unroll
  for (int to = 1; to < kRanks; ++to) {
    if (to >= c.ranks) continue;
    const int peer = call.Peer(to);
    const uint4* from = columns_for(peer);
    for (uint32_t i = begin; i < total; i += step) {
      StoreWire(call.Slot(peer, c.rank) + i, ToWire(from[i]));
    }
  }
  call.Arrive(ctas);
  const uint4* own = columns_for(c.rank);
  for (uint32_t i = begin; i < total; i += step) *place(i, c.rank) = own[i];
  Delay::Wait();
  for (uint32_t i = begin; i < total; i += kTogether * step) {
    int64_t index[kTogether];
    bool wanted[kTogether];
    uint4 all[kTogether][kRanks];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      index[j] = i + int64_t{j} * step;
      wanted[j] = index[j] < total;
    }
    call.Receive(index, wanted, all);
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
#pragma unroll
      for (int from = 0; from < kRanks; ++from) {
        if (!wanted[j] || from >= c.ranks || from == c.rank) continue;
        *place(static_cast<uint32_t>(index[j]), from) = all[j][from];
      }
    }
  }
  call.ReleaseWhenReceived();
  Delay::Wait();
  call.Finish();
}

template <int kRanks, typename Delay>
__global__ void __launch_bounds__(kDealRowsThreads)
    DealRowsKernel(const __grid_constant__ DealRowsArgs args) {
  DealRows<kRanks, Delay>(args, blockIdx.x, gridDim.x);
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_COLLECTIVE_DEAL_ROWS_KERNEL_CUH_
