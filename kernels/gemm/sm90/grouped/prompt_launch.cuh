// Launches prompt_kernel.cuh's kernel: makes the tensor maps and sizes memory. For the files with
// its instances and its test, which puts delays into the kernel.
#ifndef MILLRACE_KERNELS_GEMM_SM90_GROUPED_PROMPT_LAUNCH_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_GROUPED_PROMPT_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/gemm/sm90/dense/skinny_launch.cuh"
#include "kernels/gemm/sm90/grouped/grouped_instances.h"
#include "kernels/gemm/sm90/grouped/prompt_kernel.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels::sm90 {

// Launches the instance of `kKind`. `args` are valid, and their tiles have kPromptTile rows.
template <GroupedKind kKind, typename Delay>
cudaError_t LaunchPromptKind(const GroupedLinearArgs& args, cudaStream_t stream) {
  using Shape = PromptShape<kKind>;
  PromptParams params = {.input = {},
                         .p = GroupedParamsOf(args),
                         .row_groups = 0,
                         .sorted_output = args.sorted_output};
  GroupedParams& p = params.p;
  p.row_tiles = static_cast<int>(CeilDiv<int64_t>(args.weight.rows, Shape::kRows));
  params.row_groups = CeilDiv(p.row_tiles, Shape::kCluster);
  p.stages = std::min(args.config.stages, Shape::kStages);
  const int64_t row_bytes = int64_t{p.chunks} * kChunk;
  if (!MakeTensorMap(args.input.data, args.tokens, row_bytes, Shape::kBoxTokens, 1,
                     &params.input) ||
      (!Shape::kFourBit && !MakeTensorMap(args.weight.data, args.weight.groups * args.weight.rows,
                                          row_bytes, Shape::kRows, 1, &p.weight))) {
    return cudaErrorInvalidValue;
  }
  const auto kernel = PromptKernel<Shape, Delay>;
  // The attribute has one value, since another thread may launch the kernel with other stages.
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           Shape::kStages * Shape::kStageBytes + Shape::kUnpackedBytes);
  if (error != cudaSuccess) return error;
  const unsigned clusters = std::clamp(static_cast<unsigned>(args.config.ctas / Shape::kCluster),
                                       1U, GroupedCtas(args, params.row_groups));
  return LaunchDependentClusters(
      kernel, dim3(Shape::kCluster), dim3(clusters * Shape::kCluster), dim3(Shape::kThreads),
      p.stages * Shape::kStageBytes + Shape::kUnpackedBytes, stream, params);
}

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_GROUPED_PROMPT_LAUNCH_CUH_
