#include "kernels/collective/all_gather.h"

#include <algorithm>
#include <cstdint>

#include "kernels/collective/all_gather_kernel.cuh"
#include "kernels/collective/all_reduce_kernel.cuh"

namespace millrace::kernels {

cudaError_t LaunchAllGather(const AllGatherArgs& args, cudaStream_t stream) {
  const auto aligned = [](const void* pointer) {
    return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % 8 == 0;
  };
  const Communicator& c = args.communicator;
  if (!IsValid(c) || args.rows < 0 || args.record_bytes < 8 || args.record_bytes % 8 != 0 ||
      !aligned(args.records) || !aligned(args.gathered) ||
      int64_t{2} * args.rows * args.record_bytes > c.slot_bytes ||
      c.slot_bytes > int64_t{1} << 34) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0) return cudaSuccess;
  const int64_t words = static_cast<int64_t>(args.rows) * args.record_bytes / 8;
  const int ctas =
      static_cast<int>(std::min<int64_t>(CeilDiv<int64_t>(words, kAllGatherThreads), c.max_ctas));
  const auto kernel = RankCapacity(c.ranks) == 2   ? AllGatherKernel<2, NoDelay>
                      : RankCapacity(c.ranks) == 4 ? AllGatherKernel<4, NoDelay>
                                                   : AllGatherKernel<8, NoDelay>;
  return LaunchDependent(kernel, ctas, kAllGatherThreads, 0, stream, args);
}

}  // namespace millrace::kernels
