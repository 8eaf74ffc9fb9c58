// Compiled with AVX-512 BF16 switched on: nothing here may instantiate code that other files share.
#include <immintrin.h>

#include "executors/cpu/kernels/gemm_avx512.h"
#include "executors/cpu/kernels/kernel_sets.h"

namespace millrace::cpu::avx512_bf16 {
namespace {

// Two columns a step: the instruction adds the first product, rounds, then the second's sum.
struct Bf16 {
  static constexpr int kBytes = 64;
  static constexpr int kMaxRows = 8;

  template <int kRows>
  static void Run(const GemmTile& tile, avx512::Pass pass) {
    const uint8_t* x[kRows];
    __m512 sums[kRows];
    avx512::Begin(tile, pass.first, sums);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      x[i] = static_cast<const uint8_t*>(avx512::Row(tile, pass.first + i));
    }
    const uint8_t* weights = tile.weights;
    for (int k = 0; k < tile.depth; ++k, weights += kBytes) {
      avx512::Prefetch<kBytes>(pass, weights);
      const __m512bh w = (__m512bh)_mm512_load_si512(weights);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const int both = *reinterpret_cast<const int __attribute__((may_alias))*>(x[i] + 4 * k);
        sums[i] = _mm512_dpbf16_ps(sums[i], w, (__m512bh)_mm512_set1_epi32(both));
      }
    }
    avx512::Finish(tile, pass.first, sums);
  }
};

}  // namespace

void GemmBf16(const GemmTile& tile) {
  avx512::ForRows<Bf16>(tile, size_t{Bf16::kBytes} * tile.depth);
}

}  // namespace millrace::cpu::avx512_bf16
