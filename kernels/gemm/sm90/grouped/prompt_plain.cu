// Instances of prompt_kernel.cuh for BF16 and FP8; see grouped_instances.h.
#include "kernels/gemm/sm90/grouped/grouped_shape.cuh"
#include "kernels/gemm/sm90/grouped/prompt_launch.cuh"

namespace millrace::kernels::sm90 {

cudaError_t LaunchPromptPlain(const GroupedLinearArgs& args, cudaStream_t stream) {
  switch (GroupedKindOf(args)) {
    case GroupedKind::kBf16:
      return LaunchPromptKind<GroupedKind::kBf16, NoDelay>(args, stream);
    case GroupedKind::kFp8:
      return LaunchPromptKind<GroupedKind::kFp8, NoDelay>(args, stream);
    case GroupedKind::kFp8Block:
      return LaunchPromptKind<GroupedKind::kFp8Block, NoDelay>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace millrace::kernels::sm90
