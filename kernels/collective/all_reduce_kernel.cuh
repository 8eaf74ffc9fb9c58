// One rank's side of an all-reduce. Tests launch it with delays, and as one grid that plays all
// ranks.
#ifndef MILLRACE_KERNELS_COLLECTIVE_ALL_REDUCE_KERNEL_CUH_
#define MILLRACE_KERNELS_COLLECTIVE_ALL_REDUCE_KERNEL_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/collective/all_reduce.h"
#include "kernels/collective/norm_row.cuh"
#include "kernels/collective/wire.cuh"
#include "kernels/delay.cuh"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels {

inline constexpr int kAllReduceThreads = 512;

// The kernel's arguments. A CTA processes a row of `row_vectors` vectors of 8 columns at a time. A
// norm's rows are the tokens; a plain all-reduce divides its vectors, counted through all tokens,
// into rows as long as a CTA.
struct AllReduceParams {
  Communicator communicator;
  RmsNormArgs norm;  // of a plain all-reduce only delta, tokens and width
  Bf16* sum;
  int64_t sum_stride;
  int64_t vectors;  // of all rows
  int rows;
  int row_vectors;
  int part_vectors;  // of each row, that one rank adds up in two-shot
  int threads;
  int ctas;
};

// A thread's vector in a row.
struct RowVector {
  int64_t index;  // among all vectors
  int in_row;
  int token;
  int column;
  bool valid;
};

template <bool kNorm>
__device__ RowVector LocateVector(const AllReduceParams& p, int row, int in_row) {
  RowVector v;
  v.in_row = in_row;
  v.index = static_cast<int64_t>(row) * p.row_vectors + in_row;
  v.valid = in_row < p.row_vectors && v.index < p.vectors;
  if constexpr (kNorm) {
    v.token = row;
    v.column = 8 * in_row;
  } else {
    const uint32_t token_vectors = p.norm.width / 8;
    v.token = static_cast<uint32_t>(v.index) / token_vectors;
    v.column = 8 * (static_cast<uint32_t>(v.index) % token_vectors);
  }
  return v;
}

// Returns a vector of this rank's partial sums as it goes over the wire.
__device__ inline uint4 LoadPartial(const Product& partial, const RowVector& v) {
  if (partial.token_scales == nullptr && partial.channel_scales == nullptr) {
    return ToWire(LoadRaw8(partial.data + v.token * partial.stride + v.column));
  }
  ProductVector<true> scaled;
  scaled.LoadConstants(partial, v.column);
  scaled.Load(partial, v.token, v.column);
  float values[8];
  scaled.Values(values);
  return ToWire(Pack8(values));
}

// Adds the ranks' vectors in rank order and rounds once.
template <int kRanks>
__device__ uint4 AddInRankOrder(const uint4 (&all)[kRanks], int ranks) {
  float sum[8];
  Unpack8(all[0], sum);
#pragma unroll
  for (int rank = 1; rank < kRanks; ++rank) {
    if (rank >= ranks) continue;
    float addend[8];
    Unpack8(all[rank], addend);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] = __fadd_rn(sum[j], addend[j]);
  }
  return Pack8(sum);
}

// How many of a thread's vectors are waited for at once: what fits its registers.
template <int kRanks, int kVectors>
inline constexpr int kTogether = kRanks* kVectors <= 16 ? kVectors : 16 / kRanks;

// Two-shot: the part of a row that a vector is in, which is the rank that adds it up, and its place
// among the part's vectors in all rows.
struct Part {
  int owner;
  int64_t index;
};
__device__ inline Part PartOf(const AllReduceParams& p, int row, const RowVector& v) {
  const int owner = v.in_row / p.part_vectors;
  return {owner, static_cast<int64_t>(row) * p.part_vectors + v.in_row - owner * p.part_vectors};
}

// In two-shot a slot has two halves: what is to be added, and what was.
__device__ inline int64_t SumsBegin(const Communicator& c) { return c.slot_bytes / 32; }

// Two-shot's first trip: sends each part of the CTA's rows to its rank, adds up this rank's part,
// and sends that to all ranks, itself included.
template <int kRanks, int kVectors, bool kNorm, typename Delay>
__device__ void ReduceScatter(const AllReduceParams& p, Call& call, int cta, int ctas) {
  const Communicator& c = p.communicator;
  for (int row = cta; row < p.rows; row += ctas) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const RowVector v = LocateVector<kNorm>(p, row, i * blockDim.x + threadIdx.x);
      if (!v.valid) continue;
      const Part part = PartOf(p, row, v);
      if (part.owner == c.rank) continue;
      StoreWire(call.Slot(part.owner, c.rank) + part.index, LoadPartial(p.norm.delta, v));
    }
  }
  Delay::Wait();
  for (int row = cta; row < p.rows; row += ctas) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const RowVector v = LocateVector<kNorm>(p, row, i * blockDim.x + threadIdx.x);
      if (!v.valid) continue;
      const Part part = PartOf(p, row, v);
      if (part.owner != c.rank) continue;
      const int64_t index[1] = {part.index};
      const bool wanted[1] = {true};
      uint4 all[1][kRanks];
      const uint4 own = LoadPartial(p.norm.delta, v);
#pragma unroll
      for (int from = 0; from < kRanks; ++from) all[0][from] = own;
      call.Receive<kRanks, 1>(index, wanted, all);
      const uint4 sum = ToWire(AddInRankOrder(all[0], c.ranks));
      call.Send<kRanks>(SumsBegin(c) + part.index, sum);
      StoreWire(call.Slot(c.rank, c.rank) + SumsBegin(c) + part.index, sum);
    }
  }
}

// Waits for the sums of this thread's vectors in a row.
template <int kRanks, int kVectors, bool kTwoShot, typename Delay>
__device__ void AwaitSums(const AllReduceParams& p, Call& call, int row,
                          const RowVector (&vectors)[kVectors], uint4 (&sums)[kVectors]) {
  const Communicator& c = p.communicator;
  if constexpr (kTwoShot) {
    uint4* at[kVectors];
    int owner[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const Part part = PartOf(p, row, vectors[i]);
      owner[i] = part.owner;
      at[i] = call.Slot(c.rank, min(part.owner, c.ranks - 1)) + SumsBegin(c) + part.index;
    }
    int missing;
    do {
      missing = -1;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (vectors[i].valid) sums[i] = LoadWire(at[i]);
      }
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (vectors[i].valid && !IsComplete(sums[i])) missing = owner[i];
      }
    } while (missing >= 0 && call.MayWait(missing));
    Delay::Wait();
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (vectors[i].valid) StoreWire(at[i], Nothing());
    }
  } else {
    constexpr int kCount = kTogether<kRanks, kVectors>;
#pragma unroll
    for (int first = 0; first < kVectors; first += kCount) {
      uint4 all[kCount][kRanks];
      int64_t index[kCount];
      bool wanted[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        index[i] = vectors[first + i].index;
        wanted[i] = vectors[first + i].valid;
        const uint4 own = wanted[i] ? LoadPartial(p.norm.delta, vectors[first + i]) : uint4{};
#pragma unroll
        for (int from = 0; from < kRanks; ++from) all[i][from] = own;
      }
      call.Receive<kRanks, kCount>(index, wanted, all);
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[first + i] = AddInRankOrder(all[i], c.ranks);
    }
  }
}

// Runs CTA `cta` of `ctas` of one rank. The steps go through all rows of the CTA before the next
// one begins, so that data are on their way while others are waited for, and no CTA waits before it
// has sent what others need first.
template <int kRanks, int kVectors, bool kNorm, bool kTwoShot, typename Delay>
__device__ void AllReduceRows(const AllReduceParams& p, int cta, int ctas) {
  NormRow<kNorm, kVectors> norm;
  norm.LoadConstants(p.norm);
  if (p.communicator.release_early) ReleaseDependents();
  WaitForPredecessor();

  Call call(p.communicator);
  Delay::Wait();
  if constexpr (kTwoShot) {
    ReduceScatter<kRanks, kVectors, kNorm, Delay>(p, call, cta, ctas);
  } else {
    for (int row = cta; row < p.rows; row += ctas) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const RowVector v = LocateVector<kNorm>(p, row, i * blockDim.x + threadIdx.x);
        if (v.valid) call.Send<kRanks>(v.index, LoadPartial(p.norm.delta, v));
      }
    }
  }
  Delay::Wait();
  for (int row = cta; row < p.rows; row += ctas) {
    RowVector vectors[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      vectors[i] = LocateVector<kNorm>(p, row, i * blockDim.x + threadIdx.x);
    }
    uint4 sums[kVectors];
    norm.LoadResidual(p.norm, row);
    AwaitSums<kRanks, kVectors, kTwoShot, Delay>(p, call, row, vectors, sums);
    if (row + ctas >= p.rows) call.ReleaseWhenReceived();
    if constexpr (kNorm) {
      norm.AddAndWrite(p.norm, row, sums);
    } else {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (!vectors[i].valid) continue;
        *reinterpret_cast<uint4*>(p.sum + vectors[i].token * p.sum_stride + vectors[i].column) =
            sums[i];
      }
    }
  }
  Delay::Wait();
  call.Finish(ctas);
}

template <int kRanks, int kVectors, bool kNorm, bool kTwoShot, typename Delay>
__global__ void __launch_bounds__(kAllReduceThreads)
    AllReduceKernel(const __grid_constant__ AllReduceParams params) {
  AllReduceRows<kRanks, kVectors, kNorm, kTwoShot, Delay>(params, blockIdx.x, gridDim.x);
}

// Each returns the kernel's arguments, or none (ctas is 0) if `args` are invalid or have no tokens;
// then `error` says which. `vectors` is set to kVectors.
AllReduceParams PlanAllReduce(const AllReduceArgs& args, int& vectors, cudaError_t& error);
AllReduceParams PlanAllReduceNorm(const AllReduceNormArgs& args, int& vectors, cudaError_t& error);

// Returns the smallest kRanks for a number of ranks.
constexpr int RankCapacity(int ranks) { return ranks <= 2 ? 2 : ranks <= 4 ? 4 : 8; }

template <int kRanks, int kVectors, bool kNorm, typename Delay>
cudaError_t LaunchInstance(const AllReduceParams& p, AllReduceMethod method, cudaStream_t stream) {
  return LaunchDependent(method == AllReduceMethod::kTwoShot
                             ? AllReduceKernel<kRanks, kVectors, kNorm, true, Delay>
                             : AllReduceKernel<kRanks, kVectors, kNorm, false, Delay>,
                         p.ctas, p.threads, 0, stream, p);
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_COLLECTIVE_ALL_REDUCE_KERNEL_CUH_
