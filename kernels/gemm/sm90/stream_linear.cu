#include "kernels/gemm/sm90/stream_linear.h"

#include "kernels/gemm/sm90/stream_launch.cuh"
#include "kernels/kernel_table.h"

namespace millrace::kernels::sm90 {
std::optional<StreamChoice> ChooseStream(const LinearShape& shape, int64_t tokens) {
  const bool fp8 = shape.type == Type::kFp8;
  if (tokens > kMostStreamTokens ||
      !MayRun(fp8 ? Kernel::kLinearFp8Sm90 : Kernel::kLinearBf16Sm90)) {
    return std::nullopt;
  }
  return StreamChoice{.stages = fp8 ? 7 : 9, .ctas = StreamSms()};
}

cudaError_t LaunchStreamLinear(const StreamLinearArgs& args, cudaStream_t stream) {
  return LaunchStream<NoDelay>(args, stream);
}

}  // namespace millrace::kernels::sm90
