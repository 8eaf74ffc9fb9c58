#include "kernels/gemm/sm90/dense/skinny_linear.h"

#include "kernels/gemm/sm90/dense/skinny_launch.cuh"

namespace millrace::kernels::sm90 {

cudaError_t LaunchSkinnyLinear(const SkinnyLinearArgs& args, cudaStream_t stream) {
  return LaunchSkinny<NoDelay>(args, stream);
}

}  // namespace millrace::kernels::sm90
