// Compiled with AVX2 switched on: nothing here may instantiate code that other files share.
#include <immintrin.h>

#include "executors/cpu/kernels/attention_spans.h"
#include "executors/cpu/kernels/kernel_sets.h"
#include "executors/host/avx2_math.h"

namespace millrace::cpu::avx2 {

#include "executors/cpu/kernels/attention_simd.inc"

namespace {

constexpr int kGroup = kTileRows;  // keys in the lanes of a Floats
constexpr int kShared = 4;         // queries that share a load of keys or values

inline const uint8_t* Page(const AttentionTile& tile, int position) {
  return tile.cache.pages +
         static_cast<size_t>(tile.cache.block_table[position / tile.block_size]) * tile.block_bytes;
}

// scores[query][position .. position + 16) = scale * q . k, one sum over the head's dimensions
// each.
template <int kQueries>
void Scores(const AttentionTile& tile, int first, Span span) {
  for (int position = span.begin; position < span.end; position += kGroup) {
    const uint8_t* keys =
        Page(tile, position) + static_cast<size_t>(position % tile.block_size) * tile.head_size * 2;
    Floats sums[kQueries];
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) sums[i] = Zeros();
    for (int d = 0; d < tile.head_size; ++d) {
      const Floats k = LoadHalves(keys + d * kGroup * 2);
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) {
        sums[i] = Fma(k, All(tile.queries[first + i][d]), sums[i]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) {
      Floats score = Mul(sums[i], All(tile.scale));
      if (tile.soft_cap != 0) score = SoftCap(score, tile.soft_cap);
      Store(tile.scores + (first + i) * tile.score_stride + position, score);
    }
  }
}

// out[query] = inverse_sum * sum over keys of p * v.
template <int kQueries>
void WeightValues(const AttentionTile& tile, int first, Span span, const float* inverse_sums) {
  const float* p = tile.scores + first * tile.score_stride;
  for (int dim = 0; dim < tile.head_size; dim += 16) {
    Floats sums[kQueries];
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) sums[i] = Zeros();
    for (int position = span.begin; position < span.end;) {
      const uint8_t* values =
          Page(tile, position) +
          (static_cast<size_t>(tile.block_size + position % tile.block_size) * tile.head_size +
           dim) *
              2;
      const int block_end = position / tile.block_size * tile.block_size + tile.block_size;
      const int end = block_end < span.end ? block_end : span.end;
      for (; position < end; ++position, values += tile.head_size * 2) {
        const Floats v = LoadHalves(values);
#pragma GCC unroll 4
        for (int i = 0; i < kQueries; ++i) {
          sums[i] = Fma(v, All(p[i * tile.score_stride + position]), sums[i]);
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) {
      Store(tile.out + (first + i) * tile.head_size + dim,
            Mul(sums[i], All(inverse_sums[first + i])));
    }
  }
}

template <int kQueries>
void Attend(const AttentionTile& tile, int first, Span span) {
  Scores<kQueries>(tile, first, span);
  float inverse_sums[kMaxQueries];
  for (int i = first; i < first + kQueries; ++i) {
    inverse_sums[i] = Softmax(tile, i, span);
  }
  WeightValues<kQueries>(tile, first, span, inverse_sums);
}

}  // namespace

void Attention(const AttentionTile& tile) {
  const Span span = SeenKeys(tile);
  int first = 0;
  for (; first + kShared <= tile.num_queries; first += kShared) Attend<kShared>(tile, first, span);
  switch (tile.num_queries - first) {
    case 1:
      return Attend<1>(tile, first, span);
    case 2:
      return Attend<2>(tile, first, span);
    case 3:
      return Attend<3>(tile, first, span);
  }
}

}  // namespace millrace::cpu::avx2
