// The form in which the CPU executor keeps weights: the file's own numbers, re-tiled so that a
// register holds 16 rows (see GemmTile in kernels.h), never expanded.
#ifndef MILLRACE_EXECUTORS_CPU_WEIGHT_TILES_H_
#define MILLRACE_EXECUTORS_CPU_WEIGHT_TILES_H_

#include <cstddef>
#include <cstdint>

#include "executors/cpu/kernels.h"
#include "formats/tensor.h"

namespace millrace::cpu {

// A weight [rows, columns] cut into tiles of 16 rows; rows past the last are zero.
struct TiledMatrix {
  TensorType type = TensorType::kF32;
  Form input = Form::kFloat;  // what its linear reads
  GemmKernel gemm = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t tiles = 0;
  int depth = 0;          // of a tile, in the kernel's steps
  size_t tile_bytes = 0;  // a multiple of 64
  const uint8_t* data = nullptr;

  const uint8_t* Tile(int64_t tile) const { return data + tile * tile_bytes; }
};

// All of it but `data`. `columns` is a multiple of 32 for the quantized types; there are no tiles
// of BF16 and FP8.
TiledMatrix DescribeTiles(TensorType type, int64_t rows, int64_t columns, const Kernels& kernels);

// Puts one row of the file into lane [0, 16) of a tile.
void TileRow(const TiledMatrix& matrix, const uint8_t* row, int lane, uint8_t* tile);

// The row back, as floats: [columns].
void UntileRow(const TiledMatrix& matrix, int64_t row, float* out);

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_WEIGHT_TILES_H_
