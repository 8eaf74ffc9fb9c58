// Launches block_kernel.cuh's kernel: chooses the instance, makes tensor maps, sizes shared memory.
// For block_linear.cu and its test, which puts delays into the kernel.
#ifndef MILLRACE_KERNELS_GEMM_SM90_DENSE_BLOCK_LAUNCH_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_DENSE_BLOCK_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>

#include "kernels/gemm/sm90/dense/block_kernel.cuh"
#include "kernels/gemm/sm90/dense/block_linear.h"
#include "kernels/gemm/sm90/dense/skinny_launch.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels::sm90 {

struct BlockInstance {
  BlockTile tile;
  void (*kernel)(BlockParams);
  int chunks, threads, stage_bytes;
  int pipeline_bytes;  // at most
};

template <typename Shape, typename Delay>
BlockInstance MakeBlockInstance() {
  constexpr int kStatic = static_cast<int>(sizeof(PipelineBarriers)) +
                          Shape::kMathWarps * BlockGemm<Shape, Delay>::Writer::kBytes;
  return {.tile = {.rows = Shape::kRows, .tokens = Shape::kTokens},
          .kernel = BlockKernel<Shape, Delay>,
          .chunks = Shape::kChunks,
          .threads = Shape::kThreads,
          .stage_bytes = Shape::kStageBytes,
          .pipeline_bytes = (226 - CeilDiv(kStatic, 1024)) * 1024};
}

// One instance for each tile.
template <typename Delay>
std::span<const BlockInstance> BlockInstances() {
  static const BlockInstance instances[] = {
      MakeBlockInstance<BlockShape<64, 32, 4>, Delay>(),
      MakeBlockInstance<BlockShape<64, 64, 2>, Delay>(),
      MakeBlockInstance<BlockShape<128, 64, 2>, Delay>(),
  };
  return instances;
}

template <typename Delay>
cudaError_t LaunchBlock(const BlockLinearArgs& args, cudaStream_t stream) {
  const Weight& weight = args.weight;
  const BlockTile& tile = args.config.tile;
  const auto instances = BlockInstances<Delay>();
  const auto instance = std::find_if(instances.begin(), instances.end(),
                                     [&](const BlockInstance& one) { return one.tile == tile; });
  if (instance == instances.end() || args.config.stages < 2 || args.config.ctas < 1 ||
      args.tokens > kMaxBlockTokens || weight.scaling != WeightScaling::kBlock ||
      !IsValidProduct(args)) {
    return cudaErrorInvalidValue;
  }
  if (!KernelsAwait()) return cudaErrorNotSupported;
  const int tokens = static_cast<int>(args.tokens), rows = static_cast<int>(weight.rows);
  const int parts = CeilDiv(tokens, tile.tokens);
  const int tiles = CeilDiv(rows, tile.rows) * parts;
  const BlockScales scales = BlockScalesOf(args);
  BlockParams params = {.weight = {},
                        .input = {},
                        .output = {.data = args.output,
                                   .stride = args.output_stride,
                                   .rows = rows,
                                   .tokens = tokens,
                                   .fp32 = args.output_type == Type::kF32},
                        .scales = scales,
                        .parts = parts,
                        .part_tokens = CeilDiv(CeilDiv(tokens, parts), 8) * 8,
                        .tiles = tiles,
                        .steps = CeilDiv(scales.chunks, instance->chunks),
                        .stages = std::min({args.config.stages, kMaxStages,
                                            instance->pipeline_bytes / instance->stage_bytes})};
  if (!MakeTensorMap(weight.data, rows, weight.stride, tile.rows, instance->chunks,
                     &params.weight) ||
      !MakeTensorMap(args.input.data, tokens, weight.stride, params.part_tokens, 1,
                     &params.input)) {
    return cudaErrorInvalidValue;
  }
  // The attribute has one value, since another thread may launch the kernel with other stages.
  const cudaError_t error = cudaFuncSetAttribute(
      instance->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, instance->pipeline_bytes);
  if (error != cudaSuccess) return error;
  return LaunchDependent(instance->kernel, dim3(std::min(args.config.ctas, tiles)),
                         dim3(instance->threads), params.stages * instance->stage_bytes, stream,
                         params);
}

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_DENSE_BLOCK_LAUNCH_CUH_
