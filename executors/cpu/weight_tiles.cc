#include "executors/cpu/weight_tiles.h"

#include <cstdlib>
#include <cstring>

#include "formats/float16.h"

namespace millrace::cpu {
namespace {

constexpr int kQ4Bytes = 320;       // of a tile, a block of columns: quants, then d and m
constexpr int kQ8PairBytes = 1088;  // two blocks of columns: d, then quants
constexpr int kQ4FileBytes = 20;
constexpr int kQ8FileBytes = 34;

size_t AlignUp(size_t bytes) { return (bytes + 63) / 64 * 64; }

template <typename T>
T Load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

float LoadHalf(const uint8_t* from) { return HalfToFloat(Load<uint16_t>(from)); }

template <int kBytes>
void TileElements(const uint8_t* row, int columns, int lane, uint8_t* tile) {
  uint8_t* to = tile + lane * kBytes;
  for (int i = 0; i < columns; ++i, row += kBytes, to += kTileRows * kBytes) {
    std::memcpy(to, row, kBytes);
  }
}

}  // namespace

TiledMatrix DescribeTiles(TensorType type, int64_t rows, int64_t columns, const Kernels& kernels) {
  TiledMatrix matrix;
  matrix.type = type;
  matrix.rows = rows;
  matrix.columns = columns;
  matrix.tiles = (rows + kTileRows - 1) / kTileRows;
  switch (type) {
    case TensorType::kF32:
      matrix.depth = static_cast<int>(columns);
      matrix.tile_bytes = columns * kTileRows * sizeof(float);
      matrix.gemm = kernels.gemm_f32;
      break;
    case TensorType::kF16:
      matrix.depth = static_cast<int>(columns);
      matrix.tile_bytes = AlignUp(columns * kTileRows * sizeof(uint16_t));
      matrix.gemm = kernels.gemm_f16;
      break;
    case TensorType::kQ8_0:
      matrix.depth = static_cast<int>(columns / kBlock);
      matrix.tile_bytes =
          static_cast<size_t>(matrix.depth / 2) * kQ8PairBytes + matrix.depth % 2 * (64 + 512);
      matrix.input = Form::kQ8ForQ8;
      matrix.gemm = kernels.gemm_q8_0;
      break;
    case TensorType::kQ4_1:
      matrix.depth = static_cast<int>(columns / kBlock);
      matrix.tile_bytes = static_cast<size_t>(matrix.depth) * kQ4Bytes;
      matrix.input = Form::kQ8ForQ4;
      matrix.gemm = kernels.gemm_q4_1;
      break;
    case TensorType::kBf16:
    case TensorType::kFp8E4m3:
      std::abort();  // the placer refuses them
  }
  return matrix;
}

void TileRow(const TiledMatrix& matrix, const uint8_t* row, int lane, uint8_t* tile) {
  switch (matrix.type) {
    case TensorType::kF32:
      return TileElements<4>(row, matrix.depth, lane, tile);
    case TensorType::kF16:
      return TileElements<2>(row, matrix.depth, lane, tile);
    case TensorType::kQ8_0: {
      for (int b = 0; b < matrix.depth; ++b, row += kQ8FileBytes) {
        uint8_t* pair = tile + static_cast<size_t>(b / 2) * kQ8PairBytes;
        std::memcpy(pair + b % 2 * 32 + 2 * lane, row, 2);
        uint8_t* to = pair + 64 + b % 2 * 512 + 4 * lane;
        for (int j = 0; j < 8; ++j) {
          // + 128 on each byte: VNNI multiplies unsigned bytes by signed ones.
          const uint32_t quants = Load<uint32_t>(row + 2 + 4 * j) ^ 0x80808080u;
          std::memcpy(to + 64 * j, &quants, 4);
        }
      }
      return;
    }
    case TensorType::kQ4_1: {
      for (int b = 0; b < matrix.depth; ++b, row += kQ4FileBytes, tile += kQ4Bytes) {
        for (int j = 0; j < 4; ++j) std::memcpy(tile + 64 * j + 4 * lane, row + 4 + 4 * j, 4);
        std::memcpy(tile + 256 + 2 * lane, row, 2);
        std::memcpy(tile + 288 + 2 * lane, row + 2, 2);
      }
      return;
    }
    case TensorType::kBf16:
    case TensorType::kFp8E4m3:
      std::abort();  // no such tiles
  }
}

void UntileRow(const TiledMatrix& matrix, int64_t row, float* out) {
  const uint8_t* tile = matrix.Tile(row / kTileRows);
  const int lane = static_cast<int>(row % kTileRows);
  switch (matrix.type) {
    case TensorType::kF32:
      for (int i = 0; i < matrix.depth; ++i)
        out[i] = Load<float>(tile + (i * kTileRows + lane) * 4);
      return;
    case TensorType::kF16:
      for (int i = 0; i < matrix.depth; ++i) out[i] = LoadHalf(tile + (i * kTileRows + lane) * 2);
      return;
    case TensorType::kQ8_0: {
      for (int b = 0; b < matrix.depth; ++b) {
        const uint8_t* pair = tile + static_cast<size_t>(b / 2) * kQ8PairBytes;
        const uint8_t* quants = pair + 64 + b % 2 * 512 + 4 * lane;
        const float scale = LoadHalf(pair + b % 2 * 32 + 2 * lane);
        for (int i = 0; i < kBlock; ++i) {
          const int quant = quants[i / 4 * 64 + i % 4] - 128;
          *out++ = static_cast<float>(quant) * scale;
        }
      }
      return;
    }
    case TensorType::kQ4_1: {
      for (int b = 0; b < matrix.depth; ++b, tile += kQ4Bytes, out += kBlock) {
        const float scale = LoadHalf(tile + 256 + 2 * lane);
        const float minimum = LoadHalf(tile + 288 + 2 * lane);
        for (int i = 0; i < kBlock / 2; ++i) {
          const uint8_t both = tile[i / 4 * 64 + 4 * lane + i % 4];
          out[i] = static_cast<float>(both & 15) * scale + minimum;
          out[i + 16] = static_cast<float>(both >> 4) * scale + minimum;
        }
      }
      return;
    }
    case TensorType::kBf16:
    case TensorType::kFp8E4m3:
      std::abort();  // no such tiles
  }
}

}  // namespace millrace::cpu
