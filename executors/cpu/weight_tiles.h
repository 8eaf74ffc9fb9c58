// The form in which the CPU executor keeps weights: the file's own numbers, re-tiled so that a
// register holds 16 rows (see TileKind in kernels.h).
#ifndef MILLRACE_EXECUTORS_CPU_WEIGHT_TILES_H_
#define MILLRACE_EXECUTORS_CPU_WEIGHT_TILES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "executors/cpu/kernels.h"
#include "formats/tensor.h"

namespace millrace::cpu {

// Nothing for what there are no tiles of: FP8.
std::optional<TileKind> TileKindOf(TensorType type);

// What a linear on weights of this type reads.
Form InputForm(TensorType type, const Kernels& kernels);

struct TileFormat {
  TensorType type = TensorType::kF32;
  TileKind kind = TileKind::kF32;
  GemmKernel gemm = nullptr;
  int depth = 0;     // in the kernel's steps
  size_t bytes = 0;  // a multiple of 64
};

// A weight [rows, columns] cut into tiles of 16 rows; rows past the last are zero. Tiles may be of
// different types, as linears of several tensors run as one.
struct TiledMatrix {
  struct Place {
    size_t offset;
    int format;  // of `formats`
  };

  Form input = Form::kFloat;  // what its linear reads
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t tiles = 0;
  size_t bytes = 0;
  std::vector<TileFormat> formats;
  std::vector<Place> places;  // [tiles]
  const uint8_t* data = nullptr;

  const TileFormat& Format(int64_t tile) const { return formats[places[tile].format]; }
  const uint8_t* Tile(int64_t tile) const { return data + places[tile].offset; }

  // Runs a linear's kernel on one of the tiles: sets `weights` and `depth`.
  void Multiply(int64_t tile, GemmTile& gemm) const {
    const TileFormat& format = Format(tile);
    gemm.weights = Tile(tile);
    gemm.depth = format.depth;
    format.gemm(gemm);
  }
};

// All of it but `data`. There are tiles of every type, and all types have one InputForm; `columns`
// is a multiple of each type's block.
TiledMatrix DescribeTiles(absl::Span<const TensorType> tiles, int64_t rows, int64_t columns,
                          const Kernels& kernels);

// Puts one row of the file into lane [0, 16) of a tile.
void TileRow(const TileFormat& format, int64_t columns, const uint8_t* row, int lane,
             uint8_t* tile);

// The row back, as floats: [columns].
void UntileRow(const TiledMatrix& matrix, int64_t row, float* out);

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_WEIGHT_TILES_H_
