// Compiled with AVX2 switched on: nothing here may instantiate code that other files share.
#include <immintrin.h>

#include "executors/cpu/kernels/gemm_avx2.h"
#include "executors/cpu/kernels/kernel_sets.h"
#include "executors/host/avx2_math.h"

namespace millrace::cpu::avx2 {
namespace {

// Weights of the next kColumns columns.
struct F32 {
  static constexpr int kColumns = 1;
  static constexpr int kBytes = 64;
  static void Get(const uint8_t* from, Floats* w) {
    w[0] = Load(reinterpret_cast<const float*>(from));
  }
};
struct F16 {
  static constexpr int kColumns = 1;
  static constexpr int kBytes = 32;
  static void Get(const uint8_t* from, Floats* w) { w[0] = LoadHalves(from); }
};
struct Bf16 {
  static constexpr int kColumns = 2;
  static constexpr int kBytes = 64;
  static void Get(const uint8_t* from, Floats* w) {
    const __m256i lo = LoadInts(from);
    const __m256i hi = LoadInts(from + 32);
    const __m256i upper = _mm256_set1_epi32(-65536);
    w[0] = {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
    w[1] = {_mm256_castsi256_ps(_mm256_and_si256(lo, upper)),
            _mm256_castsi256_ps(_mm256_and_si256(hi, upper))};
  }
};

template <class Type>
struct Float {
  template <int kRows>
  static void Run(const GemmTile& tile, int first) {
    const float* x[kRows];
    Floats sums[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      x[i] = static_cast<const float*>(Row(tile, first + i));
      sums[i] = Zeros();
    }
    const uint8_t* weights = tile.weights;
    const int columns = tile.depth * Type::kColumns;
    for (int k = 0; k < columns; k += Type::kColumns, weights += Type::kBytes) {
      if (first == 0) Prefetch(weights, Type::kBytes);
      Floats w[Type::kColumns];
      Type::Get(weights, w);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
        for (int j = 0; j < Type::kColumns; ++j) sums[i] = Fma(w[j], All(x[i][k + j]), sums[i]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      float* out = tile.out + (first + i) * tile.out_stride;
      Put(out, tile.add, sums[i].lo);
      Put(out + kLanes, tile.add, sums[i].hi);
    }
  }
};

}  // namespace

void GemmF32(const GemmTile& tile) { ForRows<Float<F32>>(tile); }
void GemmF16(const GemmTile& tile) { ForRows<Float<F16>>(tile); }
void GemmBf16(const GemmTile& tile) { ForRows<Float<Bf16>>(tile); }

}  // namespace millrace::cpu::avx2
