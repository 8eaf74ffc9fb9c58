#include "kernels/gemm/sm90/wide_linear.h"

#include "kernels/gemm/sm90/wide_launch.cuh"
#include "kernels/kernel_table.h"

namespace millrace::kernels::sm90 {
namespace {

// As measured. Few outputs are divided among CTAs by tokens too, or into small tiles where that
// costs little; many have large tiles, which read the inputs less often.
WideTile TileFor(const LinearShape& shape, int64_t tokens, int sms) {
  const int64_t tiles = shape.rows / 64;
  const bool few = 2 * tiles <= sms, many = tiles >= 2 * sms;
  // Tiles of 48 rows fit on the SMs at once, and fill more of them.
  const bool forty_eight = !few && 4 * tiles <= 3 * sms;
  if (tokens <= 32) {
    if (few && shape.type == Type::kBf16) return {.rows = 32, .tokens = 32, .cluster = 1};
    return {.rows = many ? 112 : forty_eight ? 48 : 64, .tokens = 32, .cluster = 1};
  }
  if (tokens <= 64) {
    if (few) return {.rows = 64, .tokens = 32, .cluster = 2};
    return {.rows = many ? 112 : forty_eight ? 48 : 64, .tokens = 64, .cluster = 1};
  }
  if (few) return {.rows = 64, .tokens = 64, .cluster = 2};
  return {.rows = many ? 112 : 64, .tokens = 128, .cluster = 1};
}

}  // namespace

std::optional<WideChoice> ChooseWide(const LinearShape& shape, int64_t tokens) {
  const bool fp8 = shape.type == Type::kFp8;
  if (tokens <= 16 || tokens > kMostWideTokens || shape.blocks ||
      !MayRun(fp8 ? Kernel::kLinearFp8Sm90 : Kernel::kLinearBf16Sm90)) {
    return std::nullopt;
  }
  // For the vocabulary's fp32 cuBLASLt is faster (at 32 tokens by 7 of 250 us alone, but it lets
  // nobody start early).
  if (tokens > 32 && shape.output == Type::kF32) return std::nullopt;
  const int sms = StreamSms();
  return WideChoice{.tile = TileFor(shape, tokens, sms), .stages = kMaxStages, .ctas = sms};
}

cudaError_t LaunchWideLinear(const WideLinearArgs& args, cudaStream_t stream) {
  return LaunchWide<NoDelay>(args, stream);
}

}  // namespace millrace::kernels::sm90
