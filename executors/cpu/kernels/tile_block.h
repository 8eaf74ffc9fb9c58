// Tiles of the quantized kinds, read without SIMD.
#ifndef MILLRACE_EXECUTORS_CPU_KERNELS_TILE_BLOCK_H_
#define MILLRACE_EXECUTORS_CPU_KERNELS_TILE_BLOCK_H_

#include <cstddef>
#include <cstdint>

#include "executors/cpu/kernels/kernels.h"

namespace millrace::cpu {

// 32 columns of a tile: element i of a row is values[i][row] * scales[i / 16][row] -
// minima[i / 16][row].
struct TileBlock {
  int values[kBlock][kTileRows];
  float scales[2][kTileRows];
  float minima[2][kTileRows];
};

// Reads rows [first_row, end_row) alone.
void ReadTileBlock(TileKind kind, const uint8_t* tile, int block, int first_row, int end_row,
                   TileBlock* out);

// Return the byte offsets of a block's group and of its codes.
size_t GroupOffset(TileKind kind, int block);
size_t CodesOffset(TileKind kind, int block);

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_KERNELS_TILE_BLOCK_H_
