// The form in which the CPU executor keeps weights: the file's own numbers, re-tiled so that a
// register holds 16 rows (see TileKind in kernels.h).
#ifndef MILLRACE_EXECUTORS_CPU_KERNELS_WEIGHT_TILES_H_
#define MILLRACE_EXECUTORS_CPU_KERNELS_WEIGHT_TILES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "executors/cpu/kernels/kernels.h"
#include "formats/tensors/tensor.h"

namespace millrace::cpu {

// Returns the kind of tiles for weights of this type, or nullopt for a type without tiles (FP8).
std::optional<TileKind> TileKindOf(TensorType type);

// Returns the form of activations that a linear on weights of this type reads.
Form InputForm(TensorType type, const Kernels& kernels);

struct TileFormat {
  TensorType type = TensorType::kF32;
  TileKind kind = TileKind::kF32;
  Form input = Form::kFloat;  // the form in which the kernel reads x
  // An index of TiledMatrix::orders: the tiles' columns read x in that order, in quantized blocks
  // that are made of floats, the `input`.
  std::optional<int> order;
  GemmKernel gemm = nullptr;
  int depth = 0;     // in the kernel's steps
  size_t bytes = 0;  // a multiple of 64
};

// Consecutive rows of one type, and of one order of their columns (TileFormat::order).
struct TileRun {
  TensorType type;
  int64_t rows;
  std::optional<int> order = {};
};

// A weight [rows, columns] cut into tiles of 16 rows. A linear of several tensors runs as one, so
// tiles may be of different types; rows of another type begin in a tile of their own. Rows past the
// end of a tile's run are zero.
struct TiledMatrix {
  struct Place {
    size_t offset;
    int format;  // an index of `formats`
    int row;     // the matrix's row that the tile begins with
    int rows;    // how many of its 16 outputs may be written: those that another run's follow on
                 // must not touch them
  };

  std::vector<Form> inputs;  // the forms of x that its tiles read, each once
  // Columns of x, [columns], as some of its tiles read them; behind those are zeros up to a
  // multiple of 32.
  std::vector<std::vector<int32_t>> orders;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t tiles = 0;
  size_t bytes = 0;
  std::vector<TileFormat> formats;
  std::vector<Place> places;  // [tiles]
  const uint8_t* data = nullptr;

  const TileFormat& Format(int64_t tile) const { return formats[places[tile].format]; }
  const uint8_t* Tile(int64_t tile) const { return data + places[tile].offset; }

  // Runs a linear's kernel on one of the tiles: sets `weights` and `depth`. All 16 outputs are
  // written.
  void Multiply(int64_t tile, GemmTile& gemm) const {
    const TileFormat& format = Format(tile);
    gemm.weights = Tile(tile);
    gemm.depth = format.depth;
    format.gemm(gemm);
  }

  // As Multiply, but writes only the first `places[tile].rows` outputs.
  void MultiplyPart(int64_t tile, GemmTile gemm) const;
};

// Describes all of the matrix but `data`. There are tiles of every type; `columns` is a multiple of
// each type's block, but for the 4-bit types with an order of their columns.
TiledMatrix DescribeTiles(absl::Span<const TileRun> runs, int64_t columns, const Kernels& kernels);

// Puts one row of the file into lane [0, 16) of a tile.
void TileRow(const TileFormat& format, int64_t columns, const uint8_t* row, int lane,
             uint8_t* tile);

// Writes a row as floats, [columns].
void UntileRow(const TiledMatrix& matrix, int64_t row, float* out);

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_KERNELS_WEIGHT_TILES_H_
