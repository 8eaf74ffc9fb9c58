// Compiled with AVX-512 switched on: nothing here may instantiate code that other files share.
#include <immintrin.h>

#include "executors/cpu/kernels/gemm_avx512.h"
#include "executors/cpu/kernels/kernel_sets.h"

namespace millrace::cpu::avx512 {
namespace {

// Weights of the next kColumns columns.
struct F32 {
  static constexpr int kColumns = 1;
  static constexpr int kBytes = 64;
  static void Load(const uint8_t* from, __m512* w) { w[0] = _mm512_load_ps(from); }
};
struct F16 {
  static constexpr int kColumns = 1;
  static constexpr int kBytes = 32;
  static void Load(const uint8_t* from, __m512* w) { w[0] = LoadHalves(from); }
};
struct Bf16 {
  static constexpr int kColumns = 2;
  static constexpr int kBytes = 64;
  static void Load(const uint8_t* from, __m512* w) {
    const __m512i both = _mm512_load_si512(from);
    w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    w[1] = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-65536)));
  }
};

template <class Type>
struct Float {
  static constexpr int kMaxRows = 8;

  template <int kRows>
  static void Run(const GemmTile& tile, Pass pass) {
    const float* x[kRows];
    __m512 sums[kRows];
    Begin(tile, pass.first, sums);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) x[i] = static_cast<const float*>(Row(tile, pass.first + i));
    const uint8_t* weights = tile.weights;
    const int columns = tile.depth * Type::kColumns;
    for (int k = 0; k < columns; k += Type::kColumns, weights += Type::kBytes) {
      Prefetch<Type::kBytes>(pass, weights);
      __m512 w[Type::kColumns];
      Type::Load(weights, w);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
        for (int j = 0; j < Type::kColumns; ++j) {
          sums[i] = _mm512_fmadd_ps(w[j], _mm512_set1_ps(x[i][k + j]), sums[i]);
        }
      }
    }
    Finish(tile, pass.first, sums);
  }
};

}  // namespace

void GemmF32(const GemmTile& tile) { ForRows<Float<F32>>(tile, size_t{F32::kBytes} * tile.depth); }
void GemmF16(const GemmTile& tile) { ForRows<Float<F16>>(tile, size_t{F16::kBytes} * tile.depth); }
void GemmBf16(const GemmTile& tile) {
  ForRows<Float<Bf16>>(tile, size_t{Bf16::kBytes} * tile.depth);
}

}  // namespace millrace::cpu::avx512
