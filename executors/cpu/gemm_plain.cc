#include <bit>
#include <cstring>

#include "executors/cpu/kernel_sets.h"
#include "formats/float16.h"

namespace millrace::cpu::plain {
namespace {

template <typename T>
const T* Row(const GemmTile& tile, int row) {
  return reinterpret_cast<const T*>(static_cast<const uint8_t*>(tile.x) + row * tile.x_stride);
}

void Finish(const GemmTile& tile, int row, const float (&sums)[kTileRows]) {
  float* out = tile.out + row * tile.out_stride;
  for (int lane = 0; lane < kTileRows; ++lane)
    out[lane] = (tile.add ? out[lane] : 0.0f) + sums[lane];
}

void LoadHalves(const uint8_t* from, float (&floats)[kTileRows]) {
  for (int lane = 0; lane < kTileRows; ++lane) {
    uint16_t half;
    std::memcpy(&half, from + 2 * lane, sizeof(half));
    floats[lane] = HalfToFloat(half);
  }
}

// One token at a time.
template <bool kQ4>
void Quantized(const GemmTile& tile) {
  for (int row = 0; row < tile.rows; ++row) {
    const QuantizedBlock* x = Row<QuantizedBlock>(tile, row);
    float sums[kTileRows] = {};
    for (int block = 0; block < tile.depth; ++block) {
      const uint8_t* pair = tile.weights + static_cast<size_t>(block / 2) * 1088;
      const uint8_t* weights =
          kQ4 ? tile.weights + static_cast<size_t>(block) * 320 : pair + 64 + block % 2 * 512;
      const int8_t* values = x[block].values;
      int dots[kTileRows];
      for (int lane = 0; lane < kTileRows; ++lane) {
        int dot = 0;
        for (int j = 0; j < (kQ4 ? 4 : 8); ++j) {
          const uint8_t* w = weights + 64 * j + 4 * lane;
          for (int b = 0; b < 4; ++b) {
            if (kQ4) {
              dot += (w[b] & 15) * values[4 * j + b] + (w[b] >> 4) * values[16 + 4 * j + b];
            } else {
              dot += w[b] * values[4 * j + b];
            }
          }
        }
        dots[lane] = dot;
      }
      float scales[kTileRows];
      if constexpr (kQ4) {
        LoadHalves(weights + 256, scales);
        float minima[kTileRows];
        LoadHalves(weights + 288, minima);
        const float correction = std::bit_cast<float>(x[block].correction);
        for (int lane = 0; lane < kTileRows; ++lane) {
          sums[lane] += static_cast<float>(dots[lane]) * scales[lane] * x[block].scale;
          sums[lane] += minima[lane] * correction;
        }
      } else {
        LoadHalves(pair + block % 2 * 32, scales);
        const int correction = static_cast<int>(x[block].correction);
        for (int lane = 0; lane < kTileRows; ++lane) {
          sums[lane] += static_cast<float>(dots[lane] + correction) * scales[lane] * x[block].scale;
        }
      }
    }
    Finish(tile, row, sums);
  }
}

template <bool kHalf>
void Floats(const GemmTile& tile) {
  for (int row = 0; row < tile.rows; ++row) {
    const float* x = Row<float>(tile, row);
    float sums[kTileRows] = {};
    for (int k = 0; k < tile.depth; ++k) {
      float w[kTileRows];
      if constexpr (kHalf) {
        LoadHalves(tile.weights + static_cast<size_t>(k) * 32, w);
      } else {
        std::memcpy(w, tile.weights + static_cast<size_t>(k) * 64, sizeof(w));
      }
      for (int lane = 0; lane < kTileRows; ++lane) sums[lane] += w[lane] * x[k];
    }
    Finish(tile, row, sums);
  }
}

}  // namespace

void GemmF32(const GemmTile& tile) { Floats<false>(tile); }
void GemmF16(const GemmTile& tile) { Floats<true>(tile); }
void GemmQ8(const GemmTile& tile) { Quantized<false>(tile); }
void GemmQ4(const GemmTile& tile) { Quantized<true>(tile); }

}  // namespace millrace::cpu::plain
