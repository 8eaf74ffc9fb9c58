#include "kernels/gemm/sm90/grouped/group_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/gemm/grouped_linear.h"
#include "kernels/gemm/sm90/grouped/dense_tiles.h"

namespace millrace::kernels::sm90 {
namespace {

// The fastest tiles on an H200 (docs/experiments/experts.md): gpt-oss-20b, four of 32 experts.
TEST(GroupTilesTest, ChoosesWhatWasMeasuredToBeTheFastest) {
  const auto tile_of = [](int tokens) { return FastestGroupTokens(4 * tokens, 32); };
  EXPECT_EQ(tile_of(1), 8);
  EXPECT_EQ(tile_of(32), 8);
  EXPECT_EQ(tile_of(64), 16);
  EXPECT_EQ(tile_of(96), 16);
  EXPECT_EQ(tile_of(128), 32);
  EXPECT_EQ(tile_of(192), 32);
  EXPECT_EQ(tile_of(256), 64);
  EXPECT_EQ(tile_of(448), kWideTokens);
  EXPECT_EQ(tile_of(768), kWideTokens);
  EXPECT_EQ(tile_of(4096), kWideTokens);
}

TEST(GroupTilesTest, NeverShrinksAsRowsAreAdded) {
  for (const int groups : {1, 8, 32, 128, 256}) {
    int last = 0;
    for (int pairs = 1; pairs <= 256 * groups; pairs += groups) {
      const int tile = FastestGroupTokens(pairs, groups);
      EXPECT_GE(tile, last) << pairs << " rows, " << groups << " groups";
      last = tile;
    }
    EXPECT_EQ(last, kWideTokens);
  }
}

// Files mix forms: llama.cpp's Q4_K_M has some down linears with six bits.
TEST(GroupTilesTest, LinearsOfTwoFormsShareTilesThatBothTake) {
  GroupedWeight whole{};
  whole.groups = 128;
  GroupedWeight four_bit = whole;
  four_bit.four_bit.emplace();
  int most = 0;
  for (int pairs = 1; pairs <= 128 * 256; pairs += 64) {
    for (const GroupedWeight* gate_up : {&whole, &four_bit}) {
      EXPECT_NE(MixtureTileTokens(*gate_up, whole, pairs), kWideTokens);
      EXPECT_NE(MixtureTileTokens(whole, *gate_up, pairs), kWideTokens);
    }
    most = std::max(most, MixtureTileTokens(four_bit, four_bit, pairs));
  }
  EXPECT_EQ(most, kWideTokens);
}

}  // namespace
}  // namespace millrace::kernels::sm90
