#include "kernels/collective/share_samples.h"

#include <algorithm>
#include <cstdint>

#include "kernels/arguments.h"
#include "kernels/collective/all_reduce_kernel.cuh"
#include "kernels/collective/deal_rows.h"
#include "kernels/collective/wire.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 128;
static_assert(sizeof(SampleResult) == 16, "a result is the first vector of a row");
constexpr int kRowVectors = kSharedSampleBytes / 16;
constexpr int kTopVectors = kRowVectors - 1;

// Returns vector `i` of a row's result and likeliest tokens.
__device__ uint4* VectorOf(const ShareSamplesArgs& args, int row, int i) {
  if (i == 0) return reinterpret_cast<uint4*>(args.results + row);
  return reinterpret_cast<uint4*>(args.tops) + int64_t{row} * kTopVectors + i - 1;
}

// Keeps a sampled token for later steps, as the sampler does.
__device__ void KeepToken(const ShareSamplesArgs& args, const SampleRow& row, int32_t token) {
  if (row.target >= 0) return;
  args.last_tokens[row.slot] = token;
  if (args.history != nullptr && row.position < args.history_stride) {
    args.history[row.slot * args.history_stride + row.position] = token;
  }
}

// Each thread takes a vector of 16 bytes at a time.
template <int kRanks>
__global__ void __launch_bounds__(kThreads)
    ShareSamplesKernel(const __grid_constant__ ShareSamplesArgs args) {
  const Communicator& c = args.communicator;
  if (c.release_early) ReleaseDependents();
  WaitForPredecessor();

  Call call(c);
  const int total = args.share * kRowVectors;
  const int begin = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  const int own = FirstDealtRow(args.num_rows, args.share, c.rank);
  for (int i = begin; i < total; i += step) {
    const int row = i / kRowVectors;
    call.Send<kRanks>(i, ToWire(*VectorOf(args, own + row, i - row * kRowVectors)));
  }
  call.Arrive(gridDim.x);
  for (int i = begin; i < total; i += step) {
    const int64_t index[1] = {i};
    const bool wanted[1] = {true};
    uint4 all[1][kRanks];
    call.Receive(index, wanted, all);
    const int in_share = i / kRowVectors, vector = i - in_share * kRowVectors;
#pragma unroll
    for (int from = 0; from < kRanks; ++from) {
      if (from >= c.ranks || from == c.rank) continue;
      const int row = FirstDealtRow(args.num_rows, args.share, from) + in_share;
      const uint4 v = all[0][from];
      // A row before the rank's place is another's, too. What never came is no token.
      if (row < from * args.share || !IsComplete(v)) continue;
      *VectorOf(args, row, vector) = v;
      if (vector == 0) KeepToken(args, args.rows[row], static_cast<int32_t>(v.x));
    }
  }
  call.ReleaseWhenReceived();
  call.Finish();
}

}  // namespace

cudaError_t LaunchShareSamples(const ShareSamplesArgs& args, cudaStream_t stream) {
  const Communicator& c = args.communicator;
  if (!IsValid(c) || args.share < 1 || args.share > args.num_rows ||
      int64_t{args.share} * c.ranks < args.num_rows || args.rows == nullptr ||
      args.results == nullptr || args.tops == nullptr || args.last_tokens == nullptr ||
      !IsAligned16(args.results) || !IsAligned16(args.tops) ||
      int64_t{args.share} * kSharedSampleBytes > c.slot_bytes) {
    return cudaErrorInvalidValue;
  }
  const int ctas = std::min(CeilDiv(args.share * kRowVectors, kThreads), c.max_ctas);
  const auto kernel = RankCapacity(c.ranks) == 2   ? ShareSamplesKernel<2>
                      : RankCapacity(c.ranks) == 4 ? ShareSamplesKernel<4>
                                                   : ShareSamplesKernel<8>;
  return LaunchDependent(kernel, ctas, kThreads, 0, stream, args);
}

}  // namespace millrace::kernels
