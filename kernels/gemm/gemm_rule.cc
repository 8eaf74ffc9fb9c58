#include "kernels/gemm/gemm_rule.h"

#include "kernels/gemm/sm90/dense/block_linear.h"
#include "kernels/gemm/sm90/dense/skinny_linear.h"
#include "kernels/gemm/sm90/dense/wide_linear.h"

namespace millrace::kernels {
namespace {

using sm90::BlockTile;
using sm90::WideTile;

// The launch takes as many stages as fit.
constexpr int kAllStages = 16;

// Few outputs are divided among CTAs by tokens too, or into small tiles where that costs little;
// many outputs have large tiles, which read the inputs less often.
WideTile WideTileFor(const GemmDesc& desc, int64_t tokens, int sms) {
  const int64_t tiles = desc.rows / 64;
  const bool few = 2 * tiles <= sms, many = tiles >= 2 * sms;
  // Tiles of 48 rows fit on the SMs at once, and fill more of them.
  const bool forty_eight = !few && 4 * tiles <= 3 * sms;
  if (tokens <= 32) {
    if (few && desc.weight == Type::kBf16) return {.rows = 32, .tokens = 32, .cluster = 1};
    return {.rows = many ? 112 : forty_eight ? 48 : 64, .tokens = 32, .cluster = 1};
  }
  if (tokens <= 64) {
    if (few) return {.rows = 64, .tokens = 32, .cluster = 2};
    return {.rows = many ? 112 : forty_eight ? 48 : 64, .tokens = 64, .cluster = 1};
  }
  if (few) return {.rows = 64, .tokens = 64, .cluster = 2};
  return {.rows = many ? 112 : 64, .tokens = 128, .cluster = 1};
}

// Small tiles where they fill more SMs. Nothing where cuBLASLt is as fast.
std::optional<BlockTile> BlockTileFor(const GemmDesc& desc, int64_t tokens, int sms) {
  const int64_t tiles = desc.rows / 64;
  const bool few = 2 * tiles <= sms;
  if (tokens <= 64) return BlockTile{.rows = few ? 32 : 64, .tokens = 64};
  if (tokens <= 128 && few) return BlockTile{.rows = 64, .tokens = 64};
  if (few || (tokens <= 128 && tiles <= sms)) return BlockTile{.rows = 64, .tokens = 128};
  return std::nullopt;
}

}  // namespace

std::optional<GemmConfig> HeuristicConfig(const GemmDesc& desc, int64_t tokens, int sms) {
  if (tokens <= sm90::kMaxSkinnyTokens) {
    const int stages = desc.weight == Type::kFp8 ? 7 : 9;
    return GemmConfig{.kernel = sm90::SkinnyConfig{.stages = stages, .ctas = sms}};
  }
  if (desc.blocks()) {
    if (tokens > sm90::kMaxBlockTokens) return std::nullopt;
    const std::optional<BlockTile> tile = BlockTileFor(desc, tokens, sms);
    if (!tile.has_value()) return std::nullopt;
    return GemmConfig{.kernel =
                          sm90::BlockConfig{.tile = *tile, .stages = kAllStages, .ctas = sms}};
  }
  // For the vocabulary's fp32 cuBLASLt is faster (at 32 tokens by 7 of 250 us alone, but the next
  // kernel cannot start early behind it).
  if (tokens > sm90::kMaxWideTokens || (tokens > 32 && desc.output == Type::kF32)) {
    return std::nullopt;
  }
  return GemmConfig{.kernel = sm90::WideConfig{
                        .tile = WideTileFor(desc, tokens, sms), .stages = kAllStages, .ctas = sms}};
}

}  // namespace millrace::kernels
