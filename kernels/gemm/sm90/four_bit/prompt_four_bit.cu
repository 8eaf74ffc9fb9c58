// Instances of prompt_kernel.cuh for four-bit weights; see grouped_instances.h.
#include "kernels/gemm/sm90/grouped/grouped_shape.cuh"
#include "kernels/gemm/sm90/grouped/prompt_launch.cuh"

namespace millrace::kernels::sm90 {

cudaError_t LaunchPromptFourBit(const GroupedLinearArgs& args, cudaStream_t stream) {
  switch (GroupedKindOf(args)) {
    case GroupedKind::kInt4By32:
      return LaunchPromptKind<GroupedKind::kInt4By32, NoDelay>(args, stream);
    case GroupedKind::kInt4By64:
      return LaunchPromptKind<GroupedKind::kInt4By64, NoDelay>(args, stream);
    case GroupedKind::kInt4By128:
      return LaunchPromptKind<GroupedKind::kInt4By128, NoDelay>(args, stream);
    case GroupedKind::kInt4Affine:
      return LaunchPromptKind<GroupedKind::kInt4Affine, NoDelay>(args, stream);
    case GroupedKind::kMxfp4:
      return LaunchPromptKind<GroupedKind::kMxfp4, NoDelay>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace millrace::kernels::sm90
