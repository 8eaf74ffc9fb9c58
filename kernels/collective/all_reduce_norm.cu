#include <algorithm>
#include <cstdint>

#include "kernels/arguments.h"
#include "kernels/collective/all_reduce.h"
#include "kernels/collective/all_reduce_kernel.cuh"

namespace millrace::kernels {

AllReduceParams PlanAllReduceNorm(const AllReduceNormArgs& args, int& vectors, cudaError_t& error) {
  constexpr int kMaxVectors = 4;
  error = cudaErrorInvalidValue;
  const Communicator& c = args.communicator;
  const RmsNormArgs& norm = args.norm;
  if (!IsValid(c) || norm.tokens < 0 || norm.mixture != nullptr || norm.width < 8 ||
      norm.width % 8 != 0 || !(norm.epsilon >= 0) || !IsValid(norm.out, norm.width) ||
      norm.out.stride > kAllReduceThreads * kMaxVectors * 8 || !IsValid(norm.delta, norm.width) ||
      norm.residual == nullptr || !IsAligned16(norm.residual) || norm.weight == nullptr ||
      !IsAligned16(norm.weight) || !IsAligned16(norm.delta_bias)) {
    return {};
  }
  AllReduceParams p = {};
  p.communicator = c;
  p.norm = norm;
  p.row_vectors = norm.width / 8;
  p.rows = norm.tokens;
  p.vectors = static_cast<int64_t>(p.rows) * p.row_vectors;
  p.part_vectors = CeilDiv(p.row_vectors, c.ranks);
  const int64_t bytes = args.method == AllReduceMethod::kOneShot
                            ? 16 * p.vectors
                            : int64_t{2 * 16} * p.rows * p.part_vectors;
  if (bytes > c.slot_bytes) return {};
  const int out_vectors = static_cast<int>(norm.out.stride / 8);
  vectors = out_vectors <= kAllReduceThreads ? 1 : out_vectors <= 2 * kAllReduceThreads ? 2 : 4;
  p.threads = CeilDiv(CeilDiv(out_vectors, vectors), kWarpSize) * kWarpSize;
  p.ctas = std::min(p.rows, c.max_ctas);
  error = cudaSuccess;
  return p;
}

cudaError_t LaunchAllReduceNorm(const AllReduceNormArgs& args, cudaStream_t stream) {
  int vectors = 0;
  cudaError_t error = cudaSuccess;
  const AllReduceParams p = PlanAllReduceNorm(args, vectors, error);
  if (p.ctas == 0) return error;
  const auto launch = [&]<int kRanks>() {
    if (vectors == 1) return LaunchInstance<kRanks, 1, true, NoDelay>(p, args.method, stream);
    if (vectors == 2) return LaunchInstance<kRanks, 2, true, NoDelay>(p, args.method, stream);
    return LaunchInstance<kRanks, 4, true, NoDelay>(p, args.method, stream);
  };
  switch (RankCapacity(p.communicator.ranks)) {
    case 2:
      return launch.operator()<2>();
    case 4:
      return launch.operator()<4>();
    default:
      return launch.operator()<8>();
  }
}

}  // namespace millrace::kernels
