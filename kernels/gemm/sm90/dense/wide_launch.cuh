// Launches wide_kernel.cuh's kernel: chooses the instance, makes tensor maps, sizes shared memory.
// For wide_linear.cu and its test, which puts delays into the kernel.
#ifndef MILLRACE_KERNELS_GEMM_SM90_DENSE_WIDE_LAUNCH_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_DENSE_WIDE_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/gemm/sm90/dense/skinny_launch.cuh"
#include "kernels/gemm/sm90/dense/wide_kernel.cuh"
#include "kernels/gemm/sm90/dense/wide_linear.h"
#include "kernels/launch.cuh"

namespace millrace::kernels::sm90 {

struct WideInstance {
  WideTile tile;
  void (*kernel)(WideParams);
  int chunks, box_rows, box_chunks, threads, stage_bytes;
  int pipeline_bytes;  // at most
};

template <typename Shape, typename Delay>
WideInstance MakeWideInstance() {
  constexpr int kStatic = static_cast<int>(sizeof(PipelineBarriers)) +
                          Shape::kMathWarps * WideGemm<Shape, Delay>::Writer::kBytes;
  return {.tile = {.rows = Shape::kRows, .tokens = Shape::kTokens, .cluster = Shape::kCluster},
          .kernel = WideKernel<Shape, Delay>,
          .chunks = Shape::kChunks,
          .box_rows = Shape::kBoxRows,
          .box_chunks = Shape::kBoxChunks,
          .threads = Shape::kThreads,
          .stage_bytes = Shape::kStageBytes,
          .pipeline_bytes = (226 - CeilDiv(kStatic, 1024)) * 1024};
}

// One instance for each tile.
template <Type kType, typename Delay>
std::span<const WideInstance> WideInstances() {
  static const WideInstance instances[] = {
      MakeWideInstance<WideShape<kType, 32, 32, 32, 2, 1>, Delay>(),
      MakeWideInstance<WideShape<kType, 48, 32, 32, 2, 1>, Delay>(),
      MakeWideInstance<WideShape<kType, 64, 32, 32, 2, 1>, Delay>(),
      MakeWideInstance<WideShape<kType, 112, 32, 32, 2, 1>, Delay>(),
      MakeWideInstance<WideShape<kType, 48, 32, 32, 2, 2>, Delay>(),
      MakeWideInstance<WideShape<kType, 48, 64, 64, 2, 1>, Delay>(),
      MakeWideInstance<WideShape<kType, 64, 32, 32, 2, 2>, Delay>(),
      MakeWideInstance<WideShape<kType, 64, 64, 64, 2, 1>, Delay>(),
      MakeWideInstance<WideShape<kType, 80, 32, 32, 2, 2>, Delay>(),
      MakeWideInstance<WideShape<kType, 112, 64, 64, 2, 1>, Delay>(),
      MakeWideInstance<WideShape<kType, 48, 64, 64, 2, 2>, Delay>(),
      MakeWideInstance<WideShape<kType, 64, 64, 64, 2, 2>, Delay>(),
      MakeWideInstance<WideShape<kType, 80, 64, 64, 2, 2>, Delay>(),
      MakeWideInstance<WideShape<kType, 96, 64, 64, 2, 2>, Delay>(),
      MakeWideInstance<WideShape<kType, 64, 128, 64, 2, 1>, Delay>(),
      MakeWideInstance<WideShape<kType, 112, 128, 128, 1, 1>, Delay>(),
  };
  return instances;
}

// Returns null where there is no such tile.
template <typename Delay>
const WideInstance* FindWideInstance(Type type, const WideTile& tile) {
  const auto instances =
      type == Type::kFp8 ? WideInstances<Type::kFp8, Delay>() : WideInstances<Type::kBf16, Delay>();
  const auto found = std::find_if(instances.begin(), instances.end(),
                                  [&](const WideInstance& one) { return one.tile == tile; });
  return found == instances.end() ? nullptr : &*found;
}

template <typename Delay>
cudaError_t LaunchWide(const WideLinearArgs& args, cudaStream_t stream) {
  const Weight& weight = args.weight;
  const WideTile& tile = args.config.tile;
  const WideInstance* const instance = FindWideInstance<Delay>(weight.type, tile);
  if (instance == nullptr || args.config.stages < 2 || args.config.ctas < 1 ||
      args.tokens > tile.tokens * tile.cluster || !IsValidProduct(args) ||
      weight.scaling == WeightScaling::kBlock) {
    return cudaErrorInvalidValue;
  }
  if (!KernelsAwait()) return cudaErrorNotSupported;
  const int64_t row_bytes = weight.stride * (weight.type == Type::kFp8 ? 1 : 2);
  const int64_t tiles = CeilDiv<int64_t>(weight.rows, tile.rows);
  const int pairs = static_cast<int>(CeilDiv<int64_t>(row_bytes / kChunk, 2));
  const int stages =
      std::min({args.config.stages, kMaxStages, instance->pipeline_bytes / instance->stage_bytes});
  const auto clusters =
      static_cast<int>(std::clamp<int64_t>(args.config.ctas / tile.cluster, 1, tiles));
  WideParams params = {
      .weight = {},
      .input = {},
      .output = {.data = args.output,
                 .stride = args.output_stride,
                 .tokens = static_cast<int>(args.tokens),
                 .fp32 = args.output_type == Type::kF32,
                 .gate = GateOutputOf(args)},
      .weight_scale = weight.scaling == WeightScaling::kTensor ? weight.scales : nullptr,
      .input_scale = args.input.scaling == Scaling::kTensor ? args.input.scales : nullptr,
      .tile_counter = args.tile_counter,
      .rows = static_cast<int>(weight.rows),
      // The copy engine takes three times as long for a row outside the tensor as for one inside.
      .part_tokens = CeilDiv(CeilDiv(static_cast<int>(args.tokens), tile.cluster), 8) * 8,
      .tiles = static_cast<int>(tiles),
      .fixed = tile.cluster > 1 ? CeilDiv(static_cast<int>(tiles), clusters)
                                : CeilDiv(stages * instance->chunks, 2 * pairs),
      .pairs = pairs,
      .stages = stages};
  if (!MakeTensorMap(weight.data, weight.rows, row_bytes, instance->box_rows, instance->box_chunks,
                     &params.weight) ||
      !MakeTensorMap(args.input.data, args.tokens, row_bytes, params.part_tokens, instance->chunks,
                     &params.input)) {
    return cudaErrorInvalidValue;
  }
  // The attribute has one value, since another thread may launch the kernel with other stages.
  const cudaError_t error = cudaFuncSetAttribute(
      instance->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, instance->pipeline_bytes);
  if (error != cudaSuccess) return error;
  return LaunchDependentClusters(
      instance->kernel, dim3(tile.cluster), dim3(static_cast<unsigned>(clusters * tile.cluster)),
      dim3(instance->threads), stages * instance->stage_bytes, stream, params);
}

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_DENSE_WIDE_LAUNCH_CUH_
