#include "kernels/gemm/sm90/grouped/group_tiles.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "kernels/gemm/sm90/grouped/dense_tiles.h"

namespace millrace::kernels::sm90 {
namespace {

// The time of a tile, in us of all of a gpt-oss-20b layer's experts. Up to `few` rows take less
// where wgmma has fewer columns for them.
struct Tile {
  int rows, few;
  double takes_few, takes;
};
constexpr Tile kTiles[] = {{8, 8, 142, 142},
                           {16, 16, 159, 159},
                           {32, 32, 181, 181},
                           {64, 32, 205, 249},
                           {kWideTokens, 64, 246, 350}};

double Takes(const Tile& tile, int rows) {
  const int whole = rows / tile.rows, last = rows % tile.rows;
  return whole * tile.takes + (last == 0 ? 0 : last <= tile.few ? tile.takes_few : tile.takes);
}

}  // namespace

int FastestGroupTokens(int64_t pairs, int64_t groups) {
  const double mean = static_cast<double>(pairs) / static_cast<double>(groups);
  if (mean > kWideTokens) return kWideTokens;
  // A group's rows are as good as Poisson distributed.
  const int most = static_cast<int>(mean + 8 * std::sqrt(mean)) + 8;
  std::array<double, std::size(kTiles)> takes = {};
  double chance = std::exp(-mean);
  for (int rows = 1; rows <= most; ++rows) {
    chance *= mean / rows;
    for (size_t i = 0; i < takes.size(); ++i) takes[i] += chance * Takes(kTiles[i], rows);
  }
  return kTiles[std::min_element(takes.begin(), takes.end()) - takes.begin()].rows;
}

}  // namespace millrace::kernels::sm90
