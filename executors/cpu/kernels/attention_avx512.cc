// Compiled with AVX-512 switched on: nothing here may instantiate code that other files share.
#include <immintrin.h>

#include "executors/cpu/kernels/attention_spans.h"
#include "executors/cpu/kernels/kernel_sets.h"
#include "executors/host/avx512_math.h"

namespace millrace::cpu::avx512 {

#include "executors/cpu/kernels/attention_simd.inc"

namespace {

constexpr int kGroup = kTileRows;    // keys in the lanes of a register
constexpr int kFewQueries = 4;       // up to here memory is the limit, above the arithmetic
constexpr int kMaxValueQueries = 6;  // queries that share a load of values: 6 * 4 sums + 4 loads

// Returns the page of a position. A tile's prefetch may ask for one before the next tile's windows,
// which has no block: it gets block 0's, and reads none of it.
inline const uint8_t* Page(const AttentionTile& tile, const HeadPages& head, int position) {
  const int32_t block = head.block_table[position / tile.block_size];
  return head.pages + static_cast<size_t>(block < 0 ? 0 : block) * tile.block_bytes;
}

// The group of 16 keys that `position`, a multiple of 16, begins: [head_size][16].
inline const uint8_t* Keys(const AttentionTile& tile, const HeadPages& head, int position) {
  return Page(tile, head, position) +
         static_cast<size_t>(position % tile.block_size) * tile.head_size * 2;
}

// The values of `position`: [head_size].
inline const uint8_t* Values(const AttentionTile& tile, const HeadPages& head, int position) {
  return Page(tile, head, position) +
         static_cast<size_t>(tile.block_size + position % tile.block_size) * tile.head_size * 2;
}

// `position`, or where the last group of 16 that has one of `length` positions begins.
inline int Within(int position, int length) {
  const int last_group = (length - 1) / kGroup * kGroup;
  return position < last_group ? position : last_group;
}

// Into the second-level cache.
inline void Prefetch(const uint8_t* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
}

// scores[query][position .. position + 16 * kGroups) = scale * q . k, one sum over the head's
// dimensions each. Groups past the last key repeat it; their scores are never used.
template <int kQueries, int kGroups>
void ScoreGroups(const AttentionTile& tile, int position, int longest) {
  const uint8_t* keys[kGroups];
  const uint8_t* next[kGroups];
#pragma GCC unroll 16
  for (int g = 0; g < kGroups; ++g) {
    const int at = position + g * kGroup;
    keys[g] = Keys(tile, tile.cache, Within(at, longest));
    next[g] = Keys(tile, tile.next, Within(at, tile.next.length));
  }
  __m512 sums[kQueries][kGroups];
#pragma GCC unroll 16
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 16
    for (int g = 0; g < kGroups; ++g) sums[i][g] = _mm512_setzero_ps();
  }
  for (int d = 0; d < tile.head_size; ++d) {
    if (kQueries <= kFewQueries &&
        d % 2 == 0) {  // a group has half as many lines as a head has dimensions
#pragma GCC unroll 16
      for (int g = 0; g < kGroups; ++g) Prefetch(next[g] + d / 2 * 64);
    }
    __m512 k[kGroups];
#pragma GCC unroll 16
    for (int g = 0; g < kGroups; ++g) k[g] = LoadHalves(keys[g] + d * kGroup * 2);
#pragma GCC unroll 16
    for (int i = 0; i < kQueries; ++i) {
      const __m512 q = _mm512_set1_ps(tile.queries[i][d]);
#pragma GCC unroll 16
      for (int g = 0; g < kGroups; ++g) sums[i][g] = _mm512_fmadd_ps(k[g], q, sums[i][g]);
    }
  }
  const __m512 scale = _mm512_set1_ps(tile.scale);
#pragma GCC unroll 16
  for (int i = 0; i < kQueries; ++i) {
    float* scores = tile.scores + i * tile.score_stride + position;
#pragma GCC unroll 16
    for (int g = 0; g < kGroups; ++g) {
      __m512 score = _mm512_mul_ps(sums[i][g], scale);
      if (tile.soft_cap != 0) score = SoftCap(score, tile.soft_cap);
      _mm512_storeu_ps(scores + g * kGroup, score);
    }
  }
}

template <int kQueries>
void Scores(const AttentionTile& tile, Span span) {
  constexpr int kGroups = kQueries <= kFewQueries ? 4 : 2;
  for (int position = span.begin; position < span.end; position += kGroups * kGroup) {
    ScoreGroups<kQueries, kGroups>(tile, position, span.end);
  }
}

void AllScores(const AttentionTile& tile, Span span) {
  switch (tile.num_queries) {
    case 1:
      return Scores<1>(tile, span);
    case 2:
      return Scores<2>(tile, span);
    case 3:
      return Scores<3>(tile, span);
    case 4:
      return Scores<4>(tile, span);
    case 5:
      return Scores<5>(tile, span);
    case 6:
      return Scores<6>(tile, span);
    case 7:
      return Scores<7>(tile, span);
    case 8:
      return Scores<8>(tile, span);
    case 9:
      return Scores<9>(tile, span);
    case 10:
      return Scores<10>(tile, span);
    case 11:
      return Scores<11>(tile, span);
    case 12:
      return Scores<12>(tile, span);
  }
}

// out[query][dim .. dim + 16 * kVectors) = inverse_sum * sum over keys of p * v.
template <int kQueries, int kVectors>
void WeightValues(const AttentionTile& tile, int first, int dim, Span span,
                  const float* inverse_sums) {
  __m512 sums[kQueries][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) sums[i][j] = _mm512_setzero_ps();
  }
  const float* p = tile.scores + first * tile.score_stride;
  for (int position = span.begin; position < span.end;) {
    const uint8_t* values = Values(tile, tile.cache, position) + dim * 2;
    const uint8_t* next = Values(tile, tile.next, Within(position, tile.next.length)) + dim * 2;
    int end = position / kGroup * kGroup + kGroup;
    if (end > span.end) end = span.end;
    for (; position < end; ++position) {
      if (kQueries <= kFewQueries) {
#pragma GCC unroll 16
        for (int j = 0; j < kVectors; j += 2) Prefetch(next + j * 32);
      }
      __m512 v[kVectors];
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) v[j] = LoadHalves(values + j * 32);
#pragma GCC unroll 16
      for (int i = 0; i < kQueries; ++i) {
        const __m512 weight = _mm512_set1_ps(p[i * tile.score_stride + position]);
#pragma GCC unroll 16
        for (int j = 0; j < kVectors; ++j) sums[i][j] = _mm512_fmadd_ps(v[j], weight, sums[i][j]);
      }
      values += tile.head_size * 2;
      next += tile.head_size * 2;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kQueries; ++i) {
    float* out = tile.out + (first + i) * tile.head_size + dim;
    const __m512 inverse = _mm512_set1_ps(inverse_sums[first + i]);
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      _mm512_storeu_ps(out + 16 * j, _mm512_mul_ps(sums[i][j], inverse));
    }
  }
}

template <int kQueries>
void AllDimensions(const AttentionTile& tile, int first, Span span, const float* inverse_sums) {
  int dim = 0;
  for (; dim + 64 <= tile.head_size; dim += 64) {
    WeightValues<kQueries, 4>(tile, first, dim, span, inverse_sums);
  }
  for (; dim < tile.head_size; dim += 16) {
    WeightValues<kQueries, 1>(tile, first, dim, span, inverse_sums);
  }
}

}  // namespace

void Attention(const AttentionTile& tile) {
  const Span span = SeenKeys(tile);
  AllScores(tile, span);
  float inverse_sums[kMaxQueries];
  for (int i = 0; i < tile.num_queries; ++i) {
    inverse_sums[i] = Softmax(tile, i, span);
  }
  int first = 0;
  for (; first + kMaxValueQueries <= tile.num_queries; first += kMaxValueQueries) {
    AllDimensions<kMaxValueQueries>(tile, first, span, inverse_sums);
  }
  switch (tile.num_queries - first) {
    case 1:
      return AllDimensions<1>(tile, first, span, inverse_sums);
    case 2:
      return AllDimensions<2>(tile, first, span, inverse_sums);
    case 3:
      return AllDimensions<3>(tile, first, span, inverse_sums);
    case 4:
      return AllDimensions<4>(tile, first, span, inverse_sums);
    case 5:
      return AllDimensions<5>(tile, first, span, inverse_sums);
  }
}

}  // namespace millrace::cpu::avx512
