#include "kernels/gemm/sm90/block_linear.h"

#include "kernels/gemm/sm90/block_launch.cuh"
#include "kernels/kernel_table.h"

namespace millrace::kernels::sm90 {
namespace {

// As measured: small tiles where that fills more SMs. Nothing where cuBLASLt is as fast.
std::optional<BlockTile> TileFor(const LinearShape& shape, int64_t tokens, int sms) {
  const int64_t tiles = shape.rows / 64;
  const bool few = 2 * tiles <= sms;
  if (tokens <= 64) return BlockTile{.rows = few ? 32 : 64, .tokens = 64};
  if (tokens <= 128 && few) return BlockTile{.rows = 64, .tokens = 64};
  if (few || (tokens <= 128 && tiles <= sms)) return BlockTile{.rows = 64, .tokens = 128};
  return std::nullopt;
}

}  // namespace

std::optional<BlockChoice> ChooseBlock(const LinearShape& shape, int64_t tokens) {
  if (!shape.blocks || tokens <= 16 || tokens > kMostBlockTokens ||
      !MayRun(Kernel::kLinearFp8Sm90)) {
    return std::nullopt;
  }
  const int sms = StreamSms();
  const std::optional<BlockTile> tile = TileFor(shape, tokens, sms);
  if (!tile.has_value()) return std::nullopt;
  return BlockChoice{.tile = *tile, .stages = kMaxStages, .ctas = sms};
}

cudaError_t LaunchBlockLinear(const BlockLinearArgs& args, cudaStream_t stream) {
  return LaunchBlock<NoDelay>(args, stream);
}

}  // namespace millrace::kernels::sm90
