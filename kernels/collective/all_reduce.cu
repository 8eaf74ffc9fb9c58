#include "kernels/collective/all_reduce.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/arguments.h"
#include "kernels/collective/all_reduce_kernel.cuh"

namespace millrace::kernels {
namespace {

// Threads of a CTA of the plain all-reduce: few while that spreads the data over more CTAs.
int PlainThreads(int64_t vectors, int max_ctas) {
  for (const int threads : {64, 128, 256}) {
    if (vectors <= static_cast<int64_t>(threads) * max_ctas) return threads;
  }
  return kAllReduceThreads;
}

int64_t SlotBytes(AllReduceMethod method, int64_t vectors, int64_t rows, int64_t part_vectors) {
  return method == AllReduceMethod::kOneShot ? 16 * vectors : 2 * 16 * rows * part_vectors;
}

}  // namespace

AllReduceMethod BestAllReduce(int ranks, int64_t bytes) {
  // Four H200, the norm fused: at 128 KiB and a width of 8192 one-shot takes 7.26 us, two-shot 6.84
  // (4096: 5.36 and 5.45), at 512 KiB 10.5 and 8.15 (docs/experiments/ranks.md).
  constexpr int64_t kMostRankBytes = int64_t{384} << 10;
  return ranks == 2 || ranks * bytes <= kMostRankBytes ? AllReduceMethod::kOneShot
                                                       : AllReduceMethod::kTwoShot;
}

int64_t AllReduceSlotBytes(AllReduceMethod method, int ranks, int tokens, int width) {
  const int64_t vectors = static_cast<int64_t>(tokens) * (width / 8);
  if (method == AllReduceMethod::kOneShot)
    return CeilDiv(16 * vectors, kSlotAlignment) * kSlotAlignment;
  // A row divides into parts of equal size but for the last one, be it a token or a CTA's vectors.
  const int64_t of_tokens = static_cast<int64_t>(tokens) * CeilDiv(width / 8, ranks);
  int64_t most = of_tokens;
  for (const int threads : {64, 128, 256, kAllReduceThreads}) {
    most = std::max<int64_t>(most, CeilDiv<int64_t>(vectors, threads) * CeilDiv(threads, ranks));
  }
  return CeilDiv(2 * 16 * most, kSlotAlignment) * kSlotAlignment;
}

AllReduceParams PlanAllReduce(const AllReduceArgs& args, int& vectors, cudaError_t& error) {
  error = cudaErrorInvalidValue;
  vectors = 1;
  const Communicator& c = args.communicator;
  if (!IsValid(c) || args.tokens < 0 || args.width < 8 || args.width % 8 != 0 ||
      static_cast<int64_t>(args.tokens) * args.width > std::numeric_limits<int>::max() - 7 ||
      !IsValid(args.partial, args.width) || args.sum == nullptr || !IsAligned16(args.sum) ||
      args.sum_stride < args.width || args.sum_stride % 8 != 0) {
    return {};
  }
  AllReduceParams p = {};
  p.communicator = c;
  p.norm.delta = args.partial;
  p.norm.tokens = args.tokens;
  p.norm.width = args.width;
  p.sum = args.sum;
  p.sum_stride = args.sum_stride;
  p.vectors = static_cast<int64_t>(args.tokens) * (args.width / 8);
  p.threads = PlainThreads(p.vectors, c.max_ctas);
  p.row_vectors = p.threads;
  p.rows = static_cast<int>(CeilDiv<int64_t>(p.vectors, p.threads));
  p.part_vectors = CeilDiv(p.row_vectors, c.ranks);
  if (SlotBytes(args.method, p.vectors, p.rows, p.part_vectors) > c.slot_bytes) return {};
  p.ctas = std::min(p.rows, c.max_ctas);
  error = cudaSuccess;
  return p;
}

cudaError_t LaunchAllReduce(const AllReduceArgs& args, cudaStream_t stream) {
  int vectors = 0;
  cudaError_t error = cudaSuccess;
  const AllReduceParams p = PlanAllReduce(args, vectors, error);
  if (p.ctas == 0) return error;
  switch (RankCapacity(p.communicator.ranks)) {
    case 2:
      return LaunchInstance<2, 1, false, NoDelay>(p, args.method, stream);
    case 4:
      return LaunchInstance<4, 1, false, NoDelay>(p, args.method, stream);
    default:
      return LaunchInstance<8, 1, false, NoDelay>(p, args.method, stream);
  }
}

}  // namespace millrace::kernels
