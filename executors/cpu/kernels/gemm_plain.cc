#include <algorithm>
#include <cstring>

#include "executors/cpu/kernels/kernel_sets.h"
#include "executors/cpu/kernels/tile_block.h"
#include "formats/tensors/float16.h"

namespace millrace::cpu::plain {
namespace {

constexpr int kMaxRows = 8;  // tokens that share a block's decoding

template <typename T>
const T* Row(const GemmTile& tile, int row) {
  return reinterpret_cast<const T*>(static_cast<const uint8_t*>(tile.x) + row * tile.x_stride);
}

void Finish(const GemmTile& tile, int row, const float (&sums)[kTileRows]) {
  float* out = tile.out + row * tile.out_stride;
  for (int lane = 0; lane < kTileRows; ++lane)
    out[lane] = (tile.add ? out[lane] : 0.0f) + sums[lane];
}

// sums += what a block of weights gives with a block of activations.
void AddBlock(const TileBlock& weights, const QuantizedBlock& x, float (&sums)[kTileRows]) {
  int dots[2][kTileRows] = {};
  for (int i = 0; i < kBlock; ++i) {
    for (int lane = 0; lane < kTileRows; ++lane) {
      dots[i / 16][lane] += weights.values[i][lane] * x.values[i];
    }
  }
  const int values0 = x.first_offset / -128;
  const int values1 = (x.offset - x.first_offset) / -128;
  const float sum0 = x.scale * static_cast<float>(values0);
  const float sum1 = x.scale * static_cast<float>(values1);
  for (int lane = 0; lane < kTileRows; ++lane) {
    sums[lane] += (static_cast<float>(dots[0][lane]) * weights.scales[0][lane] +
                   static_cast<float>(dots[1][lane]) * weights.scales[1][lane]) *
                  x.scale;
    sums[lane] -= weights.minima[0][lane] * sum0 + weights.minima[1][lane] * sum1;
  }
}

void Quantized(TileKind kind, const GemmTile& tile) {
  TileBlock weights;
  for (int first = 0; first < tile.rows; first += kMaxRows) {
    const int rows = std::min(kMaxRows, tile.rows - first);
    float sums[kMaxRows][kTileRows] = {};
    for (int block = 0; block < tile.depth; ++block) {
      ReadTileBlock(kind, tile.weights, block, 0, kTileRows, &weights);
      for (int row = 0; row < rows; ++row) {
        AddBlock(weights, Row<QuantizedBlock>(tile, first + row)[block], sums[row]);
      }
    }
    for (int row = 0; row < rows; ++row) Finish(tile, first + row, sums[row]);
  }
}

// A column: 16 floats; of BF16 every other 16-bit number.
template <TileKind kKind>
void LoadColumn(const uint8_t* weights, int column, float (&floats)[kTileRows]) {
  if constexpr (kKind == TileKind::kF32) {
    std::memcpy(floats, weights + static_cast<size_t>(column) * 64, sizeof(floats));
    return;
  }
  uint16_t numbers[2 * kTileRows];
  if constexpr (kKind == TileKind::kF16) {
    std::memcpy(numbers, weights + static_cast<size_t>(column) * 32, 32);
    for (int lane = 0; lane < kTileRows; ++lane) floats[lane] = HalfToFloat(numbers[lane]);
  } else {
    std::memcpy(numbers, weights + static_cast<size_t>(column / 2) * 64, 64);
    for (int lane = 0; lane < kTileRows; ++lane) {
      floats[lane] = Bf16ToFloat(numbers[2 * lane + column % 2]);
    }
  }
}

template <TileKind kKind>
void Floats(const GemmTile& tile) {
  const int columns = kKind == TileKind::kBf16 ? 2 * tile.depth : tile.depth;
  for (int row = 0; row < tile.rows; ++row) {
    const float* x = Row<float>(tile, row);
    float sums[kTileRows] = {};
    for (int k = 0; k < columns; ++k) {
      float w[kTileRows];
      LoadColumn<kKind>(tile.weights, k, w);
      for (int lane = 0; lane < kTileRows; ++lane) sums[lane] += w[lane] * x[k];
    }
    Finish(tile, row, sums);
  }
}

}  // namespace

void GemmF32(const GemmTile& tile) { Floats<TileKind::kF32>(tile); }
void GemmF16(const GemmTile& tile) { Floats<TileKind::kF16>(tile); }
void GemmBf16(const GemmTile& tile) { Floats<TileKind::kBf16>(tile); }
void GemmQ4_0(const GemmTile& tile) { Quantized(TileKind::kQ4_0, tile); }
void GemmQ4_1(const GemmTile& tile) { Quantized(TileKind::kQ4_1, tile); }
void GemmQ5_0(const GemmTile& tile) { Quantized(TileKind::kQ5_0, tile); }
void GemmQ5_1(const GemmTile& tile) { Quantized(TileKind::kQ5_1, tile); }
void GemmQ8_0(const GemmTile& tile) { Quantized(TileKind::kQ8_0, tile); }
void GemmIq4Nl(const GemmTile& tile) { Quantized(TileKind::kIq4Nl, tile); }
void GemmMxfp4(const GemmTile& tile) { Quantized(TileKind::kMxfp4, tile); }
void GemmInt4x32(const GemmTile& tile) { Quantized(TileKind::kInt4x32, tile); }
void GemmInt4x128(const GemmTile& tile) { Quantized(TileKind::kInt4x128, tile); }
void GemmQ2K(const GemmTile& tile) { Quantized(TileKind::kQ2K, tile); }
void GemmQ3K(const GemmTile& tile) { Quantized(TileKind::kQ3K, tile); }
void GemmQ4K(const GemmTile& tile) { Quantized(TileKind::kQ4K, tile); }
void GemmQ5K(const GemmTile& tile) { Quantized(TileKind::kQ5K, tile); }
void GemmQ6K(const GemmTile& tile) { Quantized(TileKind::kQ6K, tile); }
void GemmIq4Xs(const GemmTile& tile) { Quantized(TileKind::kIq4Xs, tile); }
void GemmIq3S(const GemmTile& tile) { Quantized(TileKind::kIq3S, tile); }
void GemmIq3Xxs(const GemmTile& tile) { Quantized(TileKind::kIq3Xxs, tile); }
void GemmIq2(const GemmTile& tile) { Quantized(TileKind::kIq2, tile); }
void GemmIq1(const GemmTile& tile) { Quantized(TileKind::kIq1, tile); }

}  // namespace millrace::cpu::plain
