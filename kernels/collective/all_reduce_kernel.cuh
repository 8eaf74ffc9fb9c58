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

// Returns `raw`, a vector of this rank's partial sums, as it goes over the wire.
__device__ inline uint4 OnWire(const Product& partial, const RowVector& v, const uint4& raw) {
  if (partial.token_scales == nullptr && partial.channel_scales == nullptr) return ToWire(raw);
  ProductVector<true> scaled;
  scaled.LoadConstants(partial, v.column);
  scaled.data = raw;
  scaled.token_scale = partial.token_scales != nullptr ? partial.token_scales[v.token] : 1;
  float values[8];
  scaled.Values(values);
  return ToWire(Pack8(values));
}

// This rank's partial sums. Those of a CTA's first row stay in registers.
template <int kVectors, bool kNorm>
class OwnRows {
 public:
  __device__ OwnRows(const AllReduceParams& p, int first_row) : p_(p), first_row_(first_row) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const RowVector v = At(first_row, i);
      first_[i] = v.valid ? LoadRaw8(Address(v)) : uint4{};
    }
  }

  // Waits for the first row. Until then its loads are under way.
  __device__ void Prepare() {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const RowVector v = At(first_row_, i);
      if (v.valid) first_[i] = OnWire(p_.norm.delta, v, first_[i]);
    }
  }

  // Returns the thread's i-th vector of a row.
  __device__ RowVector At(int row, int i) const {
    return LocateVector<kNorm>(p_, row, i * blockDim.x + threadIdx.x);
  }

  // Returns its values on the wire. It must be valid.
  __device__ uint4 Values(int row, int i, const RowVector& v) const {
    return row == first_row_ ? first_[i] : OnWire(p_.norm.delta, v, LoadRaw8(Address(v)));
  }

 private:
  __device__ const Bf16* Address(const RowVector& v) const {
    return p_.norm.delta.data + v.token * p_.norm.delta.stride + v.column;
  }

  const AllReduceParams& p_;
  int first_row_;
  uint4 first_[kVectors];
};

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

// Sends this rank's rows: all of each to every peer, or (two-shot) each part to the rank that adds
// it up.
template <int kRanks, int kVectors, bool kNorm, bool kTwoShot>
__device__ void SendRows(const AllReduceParams& p, const OwnRows<kVectors, kNorm>& own,
                         const Call& call, int cta, int ctas) {
  const Communicator& c = p.communicator;
  for (int row = cta; row < p.rows; row += ctas) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const RowVector v = own.At(row, i);
      if (!v.valid) continue;
      if constexpr (kTwoShot) {
        const Part part = PartOf(p, row, v);
        if (part.owner == c.rank) continue;
        StoreWire(call.Slot(part.owner, c.rank) + part.index, own.Values(row, i, v));
      } else {
        call.Send<kRanks>(v.index, own.Values(row, i, v));
      }
    }
  }
}

// Two-shot: adds up this rank's part of each row, and sends that to all ranks, itself included.
template <int kRanks, int kVectors, bool kNorm>
__device__ void AddParts(const AllReduceParams& p, const OwnRows<kVectors, kNorm>& own, Call& call,
                         int cta, int ctas) {
  const Communicator& c = p.communicator;
  for (int row = cta; row < p.rows; row += ctas) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const RowVector v = own.At(row, i);
      if (!v.valid) continue;
      const Part part = PartOf(p, row, v);
      if (part.owner != c.rank) continue;
      const int64_t index[1] = {part.index};
      const bool wanted[1] = {true};
      uint4 all[1][kRanks];
      const uint4 values = own.Values(row, i, v);
#pragma unroll
      for (int from = 0; from < kRanks; ++from) all[0][from] = values;
      call.Receive<kRanks, 1>(index, wanted, all);
      const uint4 sum = ToWire(AddInRankOrder(all[0], c.ranks));
      call.Send<kRanks>(SumsBegin(c) + part.index, sum);
      StoreWire(call.Slot(c.rank, c.rank) + SumsBegin(c) + part.index, sum);
    }
  }
}

// One-shot: waits for all ranks' vectors of a row and adds them.
template <int kRanks, int kVectors, bool kNorm>
__device__ void AddRow(const AllReduceParams& p, const OwnRows<kVectors, kNorm>& own, Call& call,
                       int row, uint4 (&sums)[kVectors]) {
  constexpr int kCount = kTogether<kRanks, kVectors>;
#pragma unroll
  for (int first = 0; first < kVectors; first += kCount) {
    uint4 all[kCount][kRanks];
    int64_t index[kCount];
    bool wanted[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const RowVector v = own.At(row, first + i);
      index[i] = v.index;
      wanted[i] = v.valid;
      const uint4 values = v.valid ? own.Values(row, first + i, v) : uint4{};
#pragma unroll
      for (int from = 0; from < kRanks; ++from) all[i][from] = values;
    }
    call.Receive<kRanks, kCount>(index, wanted, all);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      sums[first + i] = AddInRankOrder(all[i], p.communicator.ranks);
    }
  }
}

// Two-shot: waits for the sums of a row.
template <int kVectors, bool kNorm, typename Delay>
__device__ void AwaitSums(const AllReduceParams& p, const OwnRows<kVectors, kNorm>& own, Call& call,
                          int row, uint4 (&sums)[kVectors]) {
  const Communicator& c = p.communicator;
  uint4* at[kVectors];
  int owner[kVectors];
  bool valid[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const RowVector v = own.At(row, i);
    const Part part = PartOf(p, row, v);
    valid[i] = v.valid;
    owner[i] = part.owner;
    at[i] = call.Slot(c.rank, 0) + part.owner * (c.slot_bytes / 16) + SumsBegin(c) + part.index;
  }
  int missing;
  do {
    missing = -1;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (valid[i]) sums[i] = LoadWire(at[i]);
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (valid[i] && !IsComplete(sums[i])) missing = owner[i];
    }
  } while (missing >= 0 && call.MayWait(missing));
  Delay::Wait();
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (valid[i]) StoreWire(at[i], Nothing());
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

  // Issues the loads of the first row and of the call's state together.
  OwnRows<kVectors, kNorm> own(p, cta);
  norm.LoadResidual(p.norm, cta);
  Call call(p.communicator);
  own.Prepare();
  Delay::Wait();
  SendRows<kRanks, kVectors, kNorm, kTwoShot>(p, own, call, cta, ctas);
  call.Arrive(ctas);
  Delay::Wait();
  if constexpr (kTwoShot) {
    AddParts<kRanks, kVectors, kNorm>(p, own, call, cta, ctas);
    Delay::Wait();
  }
  for (int row = cta; row < p.rows; row += ctas) {
    uint4 sums[kVectors];
    if (row != cta) norm.LoadResidual(p.norm, row);
    if constexpr (kTwoShot) {
      AwaitSums<kVectors, kNorm, Delay>(p, own, call, row, sums);
    } else {
      AddRow<kRanks, kVectors, kNorm>(p, own, call, row, sums);
    }
    if (row + ctas >= p.rows) call.ReleaseWhenReceived();
    if constexpr (kNorm) {
      norm.AddAndWrite(p.norm, row, sums);
    } else {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const RowVector v = own.At(row, i);
        if (!v.valid) continue;
        *reinterpret_cast<uint4*>(p.sum + v.token * p.sum_stride + v.column) = sums[i];
      }
    }
  }
  Delay::Wait();
  call.Finish();
}

template <int kRanks, int kVectors, bool kNorm, bool kTwoShot, typename Delay>
__global__ void __launch_bounds__(kAllReduceThreads, kVectors == 1 && kRanks <= 4 ? 2 : 1)
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
