#include "kernels/gemm/sm90/grouped/dense_tiles.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/gemm/four_bit.h"

namespace millrace::kernels::sm90 {
namespace {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A round takes so many ns for each 128 columns, and for its begin and end.
struct Round {
  int64_t columns, ends;
};
constexpr Round kTurnsRound = {280, 4300};     // an SM has 64 rows and 64 tokens
constexpr Round kPairRound = {600, 5000};      // two CTAs with as many each
constexpr Round kSingleRound = {425, 5000};    // one of these
constexpr Round kWideRound = {1000, 4400};     // 256 rows and 64 tokens
constexpr Round kLongWideRound = {760, 7000};  // 128 rows and 128 tokens
constexpr int64_t kWideBlocks = 4, kLongWideBlocks = 2;

int64_t RoundsTake(const Round& round, int64_t rounds, int64_t stride) {
  return rounds * (round.columns * (stride / kFourBitColumns) + round.ends);
}

// Returns an estimate in ns for tiles of 64 tokens, or of kWideTokens with kWide alone.
int64_t TilesTake(DenseTiles tiles, int64_t blocks, int64_t stride, int tokens, int tile_tokens,
                  int64_t sms) {
  const int64_t of_tokens = CeilDiv(tokens, tile_tokens);
  switch (tiles) {
    case DenseTiles::kTurns:
      return RoundsTake(kTurnsRound, CeilDiv(blocks * of_tokens, sms), stride);
    case DenseTiles::kWide: {
      const bool is_long = tile_tokens == kWideTokens;
      const int64_t rows = CeilDiv(blocks, is_long ? kLongWideBlocks : kWideBlocks);
      return RoundsTake(is_long ? kLongWideRound : kWideRound, CeilDiv(rows * of_tokens, sms),
                        stride);
    }
    default: {
      const int64_t pairs = blocks * of_tokens / (2 * sms), left = blocks * of_tokens % (2 * sms);
      return RoundsTake(kPairRound, pairs + (left > sms), stride) +
             RoundsTake(kSingleRound, left > 0 && left <= sms, stride);
    }
  }
}

// Returns the fastest of all ways, and what it takes.
std::pair<int64_t, int> Fastest(int64_t blocks, int64_t stride, int tokens, int64_t sms) {
  std::pair<int64_t, int> fastest = {
      TilesTake(DenseTiles::kWide, blocks, stride, tokens, kWideTokens, sms), kWideTokens};
  for (const DenseTiles tiles : {DenseTiles::kTurns, DenseTiles::kNone, DenseTiles::kWide}) {
    fastest = std::min(fastest, {TilesTake(tiles, blocks, stride, tokens, 64, sms), 64});
  }
  return fastest;
}

}  // namespace

DenseTiles FastestDenseTiles(int64_t blocks, int64_t stride, int tokens, int tile_tokens,
                             int64_t sms) {
  if (tile_tokens == kWideTokens) return DenseTiles::kWide;
  if (tokens <= tile_tokens || tile_tokens < 64) {
    // A round of 256 rows takes 7/4 of one of two CTAs, at 32 tokens as at 64 (28672 x 4096).
    const int64_t tiles = blocks * CeilDiv(tokens, tile_tokens);
    if (tiles <= sms) return DenseTiles::kTurns;
    return 7 * CeilDiv(tiles, kWideBlocks * sms) < 4 * CeilDiv(tiles, 2 * sms) ? DenseTiles::kWide
                                                                               : DenseTiles::kNone;
  }
  const auto takes = [&](DenseTiles tiles) {
    return TilesTake(tiles, blocks, stride, tokens, tile_tokens, sms);
  };
  return std::min({DenseTiles::kTurns, DenseTiles::kNone, DenseTiles::kWide},
                  [&](DenseTiles a, DenseTiles b) { return takes(a) < takes(b); });
}

int FastestDenseTokens(int64_t blocks, int64_t stride, int tokens, int64_t sms) {
  return Fastest(blocks, stride, tokens, sms).second;
}

bool ExpandingIsFaster(int64_t blocks, int64_t stride, int tokens, int64_t sms) {
  // 0.53 bytes of a code are read and two written, at 3.9 TB/s. The product reads these two at 4
  // TB/s, or multiplies at 850 TFLOP/s.
  const int64_t weights = blocks * kFourBitRows * stride;
  const int64_t expands = weights * 253 / 390'000;
  const int64_t reads = weights / 2000 + 5000, multiplies = weights * tokens / 425'000 + 6000;
  return Fastest(blocks, stride, tokens, sms).first > expands + std::max(reads, multiplies);
}

}  // namespace millrace::kernels::sm90
