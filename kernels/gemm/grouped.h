// The rows of a grouped linear: tokens are divided among groups (a mixture's experts), and each
// group has a weight of its own. kernels/moe/assign.h fills these plain values on the device, and
// grouped_linear.h reads them.
#ifndef MILLRACE_KERNELS_GEMM_GROUPED_H_
#define MILLRACE_KERNELS_GEMM_GROUPED_H_

#include <algorithm>
#include <cstdint>

namespace millrace::kernels {

// A tile of a group's rows. Tile t of the list is number t - first_tile of its group's, which has
// `rows` rows from `first_row` of the order on.
struct GroupTile {
  int32_t group, first_tile, first_row, rows;
};

// Rows by group, on the device. Row i of the order is pair order[i]: a (token, slot), numbered
// token * slots + slot. A group's rows are adjacent and in the order of their pairs.
struct GroupedRows {
  int32_t* order;       // [pairs]; those past the last group's are not written
  int32_t* offsets;     // [groups + 1]: of a group's first row
  GroupTile* tiles;     // [MaxGroupTiles], 16-byte aligned
  int32_t* tile_count;  // [1]: the tiles that there are
  int tile_rows;        // of a tile, but for a group's last
  int pairs;
  int groups;
};

// Returns the most tiles that so many pairs can make.
constexpr int MaxGroupTiles(int pairs, int groups, int tile_rows) {
  return std::min(pairs, groups) + pairs / tile_rows;
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_GROUPED_H_
