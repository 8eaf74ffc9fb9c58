// Instances of grouped_kernel.cuh; see grouped_instances.h.
#include "kernels/gemm/sm90/grouped_launch.cuh"

namespace millrace::kernels::sm90 {

cudaError_t LaunchGroupedFp8BlockOfBf16(const GroupedLinearArgs& args, cudaStream_t stream) {
  constexpr GroupedKind kKind = GroupedKind::kFp8BlockOfBf16;
  if (args.config.tile_tokens == 8) {
    return LaunchGroupedInstance<GroupedShape<kKind, 8>, NoDelay>(args, stream);
  }
  return LaunchGroupedInstance<GroupedShape<kKind, kMostQuantizedTokens>, NoDelay>(args, stream);
}

}  // namespace millrace::kernels::sm90
