// Launches the decode kernel: chooses the instance and the shared memory. Used by paged_decode.cu
// and by the tests, which insert delays into the kernel.
#ifndef MILLRACE_KERNELS_ATTENTION_DECODE_LAUNCH_CUH_
#define MILLRACE_KERNELS_ATTENTION_DECODE_LAUNCH_CUH_

#include <algorithm>

#include "kernels/attention/decode_kernel.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels::attention {

template <typename Kv, int kHeadSize, int kHalves, typename Delay>
cudaError_t LaunchDecodeKernel(const Launch& launch) {
  constexpr int kStage = Stage<Kv, kHeadSize>::kBytes;
  constexpr int kStatic = sizeof(DecodeShared<Kv, kHeadSize>) + 128;
  constexpr int kFixed = 1024 + kStatic;  // shared memory of a CTA beside its pipeline
  const int half = launch.shared_per_sm / kCtasPerSm - kFixed;
  const int ctas = half >= 3 * kStage ? kCtasPerSm : 1;
  const int shared =
      std::min(ctas == 1 ? launch.shared_per_sm - kFixed : half, launch.shared_per_cta - kStatic);
  const int stages = std::min(shared / kStage, kMaxStages);
  if (stages == 0) return cudaErrorInvalidConfiguration;
  const auto kernel = DecodeKernel<Kv, kHeadSize, kHalves, Delay>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, stages * kStage);
  if (error != cudaSuccess) return error;
  const int ranges = std::min(kCtasPerSm * launch.sms, kMaxCtas);
  return LaunchDependent(kernel, dim3(std::min(ctas * launch.sms, ranges)), dim3(kDecodeThreads),
                         stages * kStage, launch.stream, MakeParams(launch), ranges, stages);
}

template <typename Kv, int kHeadSize, typename Delay>
cudaError_t LaunchDecodeHeads(const Launch& launch) {
  const AttentionStep& step = launch.args.step;
  return step.max_row_tokens * (step.heads / step.kv_heads) <= 8
             ? LaunchDecodeKernel<Kv, kHeadSize, 1, Delay>(launch)
             : LaunchDecodeKernel<Kv, kHeadSize, 2, Delay>(launch);
}

}  // namespace millrace::kernels::attention

#endif  // MILLRACE_KERNELS_ATTENTION_DECODE_LAUNCH_CUH_
