#include "kernels/gemm/sm90/group_tiles.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/gemm/grouped_linear.h"
#include "kernels/gemm/sm90/dense_tiles.h"

namespace millrace::kernels::sm90 {
namespace {

// What a tile takes, in us of all of a gpt-oss-20b layer's experts. Up to `few` rows take less
// where wgmma has fewer columns for them.
struct Tile {
  int rows, few;
  double takes_few, takes;
};
constexpr Tile kTiles[] = {{8, 8, 142, 142},
                           {16, 16, 159, 159},
                           {32, 32, 181, 181},
                           {64, 32, 213, 252},
                           {kWideTokens, 64, 258, 345}};
// With more rows a group than this on average, tiles of kPromptTile rows are as fast.
constexpr double kMostRows = 160;

double Takes(const Tile& tile, int rows) {
  const int last = rows % tile.rows;
  return rows / tile.rows * tile.takes + (last == 0          ? 0
                                          : last <= tile.few ? tile.takes_few
                                                             : tile.takes);
}

}  // namespace

int FastestGroupTokens(int64_t pairs, int64_t groups) {
  const double mean = static_cast<double>(pairs) / static_cast<double>(groups);
  if (mean > kMostRows) return kPromptTile;
  // A group's rows are as good as Poisson distributed.
  const int most = static_cast<int>(mean + 8 * std::sqrt(mean)) + 8;
  int fastest = 0;
  double least = std::numeric_limits<double>::max();
  for (const Tile& tile : kTiles) {
    double takes = 0, chance = std::exp(-mean);
    for (int rows = 1; rows <= most; ++rows) {
      chance *= mean / rows;
      takes += chance * Takes(tile, rows);
    }
    if (takes < least) least = takes, fastest = tile.rows;
  }
  return fastest;
}

}  // namespace millrace::kernels::sm90
