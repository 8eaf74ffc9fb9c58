// Launches grouped_kernel.cuh's kernel: makes the tensor map and sizes memory. For the files with
// its instances and its test, which puts delays into the kernel.
#ifndef MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_LAUNCH_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/gemm/sm90/dense/skinny_launch.cuh"
#include "kernels/gemm/sm90/grouped/grouped_instances.h"
#include "kernels/gemm/sm90/grouped/grouped_kernel.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels::sm90 {

// Returns how many SMs a config's CTAs fill, by GroupedCtasPerSm, whatever the shape has.
template <typename Shape>
unsigned SmsOf(const GroupedConfig& config) {
  constexpr int kPerSm = GroupedCtasPerSm(Shape::kFourBit, Shape::kTokens);
  return static_cast<unsigned>(std::max(config.ctas / kPerSm, 1));
}

// Launches the instance. `args` are valid, and their config is the instance's.
template <typename Shape, typename Delay>
cudaError_t LaunchGroupedInstance(const GroupedLinearArgs& args, cudaStream_t stream) {
  GroupedParams params = GroupedParamsOf(args);
  params.row_tiles = static_cast<int>(CeilDiv<int64_t>(args.weight.rows, Shape::kRows));
  params.steps = Shape::kFourBit ? CeilDiv(params.chunks / 2, Shape::kFourBitBlocks)
                                 : CeilDiv(params.chunks, Shape::kChunks);
  if (Shape::kFourBit && (args.rows == nullptr || args.sorted_input) &&
      !MakeTensorMap(args.input.data, args.tokens, int64_t{params.chunks} * kChunk,
                     Shape::kBoxTokens, Shape::kGroupWide ? 1 : Shape::kChunks,
                     &params.input_rows)) {
    return cudaErrorInvalidValue;
  }
  if constexpr (!Shape::kFourBit) {
    if (!MakeTensorMap(args.weight.data, args.weight.groups * args.weight.rows,
                       int64_t{params.chunks} * kChunk, Shape::kRows, Shape::kChunks,
                       &params.weight)) {
      return cudaErrorInvalidValue;
    }
  }
  const auto kernel = GroupedKernel<Shape, Delay>;
  // The attribute has one value, since another thread may launch the kernel with other stages.
  // Where there are fewer CTAs than fit, each takes so much memory that one more than an SM must
  // have would not fit. Otherwise two of those that are set up while the predecessor ends may share
  // an SM, and another SM has none: 8192 rows of four bits take 28 us on such an SM, 20 us alone
  // (measured on an H100).
  constexpr unsigned kSmBytes = 228 * 1024, kPerSm = Shape::kCtasPerSm;
  const unsigned sms = SmsOf<Shape>(args.config);
  const unsigned ctas =
      Shape::kHasOneTile
          ? static_cast<unsigned>(params.row_tiles * CeilDiv(args.tokens, Shape::kTokens))
          : std::min(GroupedCtas(args, params.row_tiles), sms * kPerSm);
  const unsigned fair = CeilDiv(ctas, sms);  // of an SM
  const bool few = fair < kPerSm;
  const unsigned most = few ? kSmBytes / (fair + 1) : Shape::kPipelineBytes;
  params.stages = GroupedStages(args.config.stages, static_cast<int>(most), Shape::kStageBytes);
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           std::max<int>(Shape::kPipelineBytes + Shape::kExtraBytes, kSmBytes / 2));
  if (error != cudaSuccess) return error;
  return LaunchDependent(kernel, dim3(ctas), dim3(Shape::kThreads),
                         few ? most : params.stages * Shape::kStageBytes + Shape::kExtraBytes,
                         stream, params);
}

// Returns how a dense linear with four-bit weights is divided, for tiles of more than 16 tokens.
template <typename Shape>
DenseTiles DenseTilesOf(const GroupedLinearArgs& args) {
  return FastestDenseTiles(CeilDiv<int64_t>(args.weight.rows, kFourBitRows), args.weight.stride,
                           args.tokens, Shape::kTokens, SmsOf<Shape>(args.config));
}

// Launches the instance of `kKind` for a tile of kTokens. Of four-bit weights of groups with up to
// 32 tokens, and of all with up to 16, warps take turns at each: a scheduler would have one warp
// otherwise. With more dense_tiles.h says how a dense linear is divided, and groups' tiles have 192
// rows; for all others CTAs of 64 rows share an SM.
template <GroupedKind kKind, int kTokens, typename Delay>
cudaError_t LaunchGroupedTile(const GroupedLinearArgs& args, cudaStream_t stream) {
  using Shape = GroupedShape<kKind, kTokens>;
  if constexpr (Shape::kFourBit) {
    if constexpr (kTokens <= 32) {
      using GroupTurns = GroupedShape<kKind, kTokens, DenseTiles::kGroupTurns>;
      if (args.rows != nullptr || (kTokens <= 16 && args.tokens > kTokens)) {
        return LaunchGroupedInstance<GroupTurns, Delay>(args, stream);
      }
    } else if (args.rows != nullptr) {
      return LaunchGroupedInstance<GroupedShape<kKind, kTokens, DenseTiles::kGroupWide>, Delay>(
          args, stream);
    }
    using Turns = GroupedShape<kKind, kTokens, DenseTiles::kTurns>;
    const DenseTiles tiles = kTokens <= 16 ? DenseTiles::kTurns : DenseTilesOf<Shape>(args);
    if (tiles == DenseTiles::kTurns) return LaunchGroupedInstance<Turns, Delay>(args, stream);
    if constexpr (kTokens > 16) {
      using Wide = GroupedShape<kKind, kTokens, DenseTiles::kWide>;
      return tiles == DenseTiles::kWide ? LaunchGroupedInstance<Wide, Delay>(args, stream)
                                        : LaunchGroupedInstance<Shape, Delay>(args, stream);
    }
    return cudaErrorInvalidValue;
  } else {
    return LaunchGroupedInstance<Shape, Delay>(args, stream);
  }
}

// The same for the config's tile.
template <GroupedKind kKind, typename Delay>
cudaError_t LaunchGroupedKind(const GroupedLinearArgs& args, cudaStream_t stream) {
  switch (args.config.tile_tokens) {
    case 8:
      return LaunchGroupedTile<kKind, 8, Delay>(args, stream);
    case 16:
      return LaunchGroupedTile<kKind, 16, Delay>(args, stream);
    case 32:
      return LaunchGroupedTile<kKind, 32, Delay>(args, stream);
    case 64:
      return LaunchGroupedTile<kKind, 64, Delay>(args, stream);
    case kWideTokens:
      if constexpr (GroupedShape<kKind, 64>::kFourBit) {
        using Wide = GroupedShape<kKind, kWideTokens, DenseTiles::kWide>;
        using GroupWide = GroupedShape<kKind, kWideTokens, DenseTiles::kGroupWide>;
        return args.rows != nullptr ? LaunchGroupedInstance<GroupWide, Delay>(args, stream)
                                    : LaunchGroupedInstance<Wide, Delay>(args, stream);
      }
      return cudaErrorInvalidValue;
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_LAUNCH_CUH_
