#include "kernels/gemm/sm90/grouped/dense_tiles.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace millrace::kernels::sm90 {
namespace {

constexpr int64_t kSms = 132;

struct Shape {
  int64_t rows, columns;
  int64_t blocks() const { return rows / 64; }
};
constexpr Shape kQkv = {6144, 4096}, kOut = {4096, 4096}, kGateUp = {28672, 4096},
                kDown = {4096, 14336};

// What was the fastest on an H200 (docs/experiments/experts.md), where ways differ by more than a
// few microseconds.
TEST(DenseTilesTest, ChoosesWhatWasMeasuredToBeTheFastest) {
  const auto tokens_of = [](const Shape& shape, int tokens) {
    return FastestDenseTokens(shape.blocks(), shape.columns, tokens, kSms);
  };
  const auto tiles_of = [](const Shape& shape, int tokens) {
    return FastestDenseTiles(shape.blocks(), shape.columns, tokens, 64, kSms);
  };
  EXPECT_EQ(tokens_of(kOut, 96), 64);
  EXPECT_EQ(tiles_of(kOut, 96), DenseTiles::kTurns);
  EXPECT_EQ(tokens_of(kOut, 256), 64);
  EXPECT_EQ(tiles_of(kOut, 256), DenseTiles::kNone);
  EXPECT_EQ(tokens_of(kDown, 128), 64);
  EXPECT_EQ(tiles_of(kDown, 128), DenseTiles::kTurns);
  EXPECT_EQ(tokens_of(kQkv, 128), 64);
  EXPECT_EQ(tiles_of(kQkv, 128), DenseTiles::kNone);
  EXPECT_EQ(tokens_of(kQkv, 256), kWideTokens);
  EXPECT_EQ(tokens_of(kGateUp, 128), kWideTokens);
  EXPECT_EQ(tokens_of(kGateUp, 256), kWideTokens);
}

TEST(DenseTilesTest, ExpandsWhereThatWasMeasuredToBeFaster) {
  const auto expands = [](const Shape& shape, int tokens) {
    return ExpandingIsFaster(shape.blocks(), shape.columns, tokens, kSms);
  };
  EXPECT_FALSE(expands(kQkv, 256));
  EXPECT_TRUE(expands(kQkv, 512));
  EXPECT_FALSE(expands(kOut, 512));
  EXPECT_TRUE(expands(kOut, 768));
  EXPECT_FALSE(expands(kGateUp, 512));
  EXPECT_TRUE(expands(kGateUp, 768));
  EXPECT_FALSE(expands(kDown, 160));
  EXPECT_FALSE(expands(kDown, 512));
  EXPECT_TRUE(expands(kDown, 768));
}

// Up to 64 tokens the tile and the SMs alone decide.
TEST(DenseTilesTest, FewTokensHaveTurnsWhereAllTilesFindAnSm) {
  for (const int tile : {32, 64}) {
    EXPECT_EQ(FastestDenseTiles(132, 4096, tile, tile, kSms), DenseTiles::kTurns);
    EXPECT_EQ(FastestDenseTiles(133, 4096, tile, tile, kSms), DenseTiles::kNone);
    EXPECT_EQ(FastestDenseTiles(448, 4096, tile, tile, kSms), DenseTiles::kWide);
  }
  EXPECT_EQ(FastestDenseTiles(1, 128, 128, kWideTokens, kSms), DenseTiles::kWide);
}

}  // namespace
}  // namespace millrace::kernels::sm90
