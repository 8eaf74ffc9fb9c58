// Instances of grouped_kernel.cuh; see grouped_instances.h.
#include "kernels/gemm/sm90/grouped/grouped_launch.cuh"

namespace millrace::kernels::sm90 {

cudaError_t LaunchGroupedFp8BlockOfBf16(const GroupedLinearArgs& args, cudaStream_t stream) {
  return LaunchGroupedInstance<GroupedShape<GroupedKind::kFp8BlockOfBf16, kMostQuantizedTokens>,
                               NoDelay>(args, stream);
}

}  // namespace millrace::kernels::sm90
