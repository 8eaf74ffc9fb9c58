// Instances of grouped_kernel.cuh; see grouped_instances.h.
#include "kernels/gemm/sm90/grouped/grouped_launch.cuh"

namespace millrace::kernels::sm90 {

cudaError_t LaunchGroupedBf16(const GroupedLinearArgs& args, cudaStream_t stream) {
  return LaunchGroupedKind<GroupedKind::kBf16, NoDelay>(args, stream);
}

}  // namespace millrace::kernels::sm90
