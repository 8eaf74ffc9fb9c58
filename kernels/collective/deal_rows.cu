#include "kernels/collective/deal_rows.h"

#include <algorithm>
#include <cstdint>

#include "kernels/arguments.h"
#include "kernels/collective/all_reduce_kernel.cuh"
#include "kernels/collective/deal_rows_kernel.cuh"

namespace millrace::kernels {

cudaError_t LaunchDealRows(const DealRowsArgs& args, cudaStream_t stream) {
  const Communicator& c = args.communicator;
  if (!IsValid(c) || args.share < 1 || args.share > args.rows ||
      int64_t{args.share} * c.ranks < args.rows || args.width < 4 || args.width % 4 != 0 ||
      args.first < 0 || args.count < 1 || args.count > args.share - args.first ||
      args.columns == nullptr || args.whole == nullptr || !IsAligned16(args.columns) ||
      !IsAligned16(args.whole) || int64_t{sizeof(float)} * args.count * args.width > c.slot_bytes ||
      c.slot_bytes > int64_t{1} << 34) {
    return cudaErrorInvalidValue;
  }
  const int64_t vectors = int64_t{args.count} * args.width / 4;
  const int ctas =
      static_cast<int>(std::min<int64_t>(CeilDiv<int64_t>(vectors, kDealRowsThreads), c.max_ctas));
  const auto kernel = RankCapacity(c.ranks) == 2   ? DealRowsKernel<2, NoDelay>
                      : RankCapacity(c.ranks) == 4 ? DealRowsKernel<4, NoDelay>
                                                   : DealRowsKernel<8, NoDelay>;
  return LaunchDependent(kernel, ctas, kDealRowsThreads, 0, stream, args);
}

}  // namespace millrace::kernels
