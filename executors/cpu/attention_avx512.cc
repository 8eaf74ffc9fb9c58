// Compiled with AVX-512 switched on: nothing here may instantiate code that other files share.
#include <immintrin.h>

#include "executors/cpu/avx512_math.h"
#include "executors/cpu/kernel_sets.h"

namespace millrace::cpu::avx512 {
namespace {

constexpr int kGroup = kTileRows;    // keys in the lanes of a register
constexpr int kFewQueries = 4;       // up to here memory is the limit, above the arithmetic
constexpr int kMaxValueQueries = 6;  // queries that share a load of values: 6 * 4 sums + 4 loads

inline int Longest(const AttentionTile& tile) {
  int longest = 0;
  for (int i = 0; i < tile.num_queries; ++i) {
    if (tile.lengths[i] > longest) longest = tile.lengths[i];
  }
  return longest;
}

inline const uint8_t* Page(const AttentionTile& tile, const HeadPages& head, int position) {
  return head.pages +
         static_cast<size_t>(head.block_table[position / tile.block_size]) * tile.block_bytes;
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

inline __m512 LoadHalves(const uint8_t* halves) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
}

// Into the second-level cache.
inline void Prefetch(const uint8_t* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
}

// scores[query][position .. position + 16 * kGroups) = scale * q . k, one sum over the head's
// dimensions each. Groups past the last key repeat it; their scores are never used.
template <int kQueries, int kGroups>
void ScoreGroups(const AttentionTile& tile, int first, int position, int longest) {
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
      const __m512 q = _mm512_set1_ps(tile.queries[first + i][d]);
#pragma GCC unroll 16
      for (int g = 0; g < kGroups; ++g) sums[i][g] = _mm512_fmadd_ps(k[g], q, sums[i][g]);
    }
  }
  const __m512 scale = _mm512_set1_ps(tile.scale);
#pragma GCC unroll 16
  for (int i = 0; i < kQueries; ++i) {
    float* scores = tile.scores + (first + i) * tile.score_stride + position;
#pragma GCC unroll 16
    for (int g = 0; g < kGroups; ++g) {
      _mm512_storeu_ps(scores + g * kGroup, _mm512_mul_ps(sums[i][g], scale));
    }
  }
}

template <int kQueries>
void Scores(const AttentionTile& tile, int first, int longest) {
  constexpr int kGroups = kQueries <= kFewQueries ? 4 : 2;
  for (int position = 0; position < longest; position += kGroups * kGroup) {
    ScoreGroups<kQueries, kGroups>(tile, first, position, longest);
  }
}

void AllScores(const AttentionTile& tile, int longest) {
  switch (tile.num_queries) {
    case 1:
      return Scores<1>(tile, 0, longest);
    case 2:
      return Scores<2>(tile, 0, longest);
    case 3:
      return Scores<3>(tile, 0, longest);
    case 4:
      return Scores<4>(tile, 0, longest);
    case 5:
      return Scores<5>(tile, 0, longest);
    case 6:
      return Scores<6>(tile, 0, longest);
    case 7:
      return Scores<7>(tile, 0, longest);
    case 8:
      return Scores<8>(tile, 0, longest);
    case 9:
      return Scores<9>(tile, 0, longest);
    case 10:
      return Scores<10>(tile, 0, longest);
    case 11:
      return Scores<11>(tile, 0, longest);
    case 12:
      return Scores<12>(tile, 0, longest);
  }
}

// Scores of one query to exp(score - largest), 0 from its length to `longest`; returns 1 / their
// sum.
float Softmax(float* scores, int length, int longest) {
  const int whole = length / kGroup * kGroup;
  const __mmask16 rest = static_cast<__mmask16>((1u << (length - whole)) - 1);
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  __m512 most = rest == 0 ? lowest : _mm512_mask_loadu_ps(lowest, rest, scores + whole);
  for (int i = 0; i < whole; i += kGroup) most = _mm512_max_ps(_mm512_loadu_ps(scores + i), most);
  const __m512 largest = _mm512_set1_ps(_mm512_reduce_max_ps(most));
  __m512 sum = _mm512_setzero_ps();
  for (int i = 0; i < whole; i += kGroup) {
    const __m512 p = Exp(_mm512_sub_ps(_mm512_loadu_ps(scores + i), largest));
    _mm512_storeu_ps(scores + i, p);
    sum = _mm512_add_ps(sum, p);
  }
  for (int i = whole; i < longest; i += kGroup) {
    const __mmask16 valid = i == whole ? rest : 0;
    const __m512 p =
        _mm512_maskz_mov_ps(valid, Exp(_mm512_sub_ps(_mm512_loadu_ps(scores + i), largest)));
    _mm512_storeu_ps(scores + i, p);
    sum = _mm512_add_ps(sum, p);
  }
  return 1.0f / _mm512_reduce_add_ps(sum);
}

// out[query][dim .. dim + 16 * kVectors) = inverse_sum * sum over keys of p * v.
template <int kQueries, int kVectors>
void WeightValues(const AttentionTile& tile, int first, int dim, int longest,
                  const float* inverse_sums) {
  __m512 sums[kQueries][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) sums[i][j] = _mm512_setzero_ps();
  }
  const float* p = tile.scores + first * tile.score_stride;
  for (int position = 0; position < longest;) {
    const uint8_t* values = Values(tile, tile.cache, position) + dim * 2;
    const uint8_t* next = Values(tile, tile.next, Within(position, tile.next.length)) + dim * 2;
    int end = position / kGroup * kGroup + kGroup;
    if (end > longest) end = longest;
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
void AllDimensions(const AttentionTile& tile, int first, int longest, const float* inverse_sums) {
  int dim = 0;
  for (; dim + 64 <= tile.head_size; dim += 64) {
    WeightValues<kQueries, 4>(tile, first, dim, longest, inverse_sums);
  }
  for (; dim < tile.head_size; dim += 16) {
    WeightValues<kQueries, 1>(tile, first, dim, longest, inverse_sums);
  }
}

}  // namespace

void Attention(const AttentionTile& tile) {
  const int longest = Longest(tile);
  AllScores(tile, longest);
  float inverse_sums[kMaxQueries];
  for (int i = 0; i < tile.num_queries; ++i) {
    inverse_sums[i] = Softmax(tile.scores + i * tile.score_stride, tile.lengths[i], longest);
  }
  int first = 0;
  for (; first + kMaxValueQueries <= tile.num_queries; first += kMaxValueQueries) {
    AllDimensions<kMaxValueQueries>(tile, first, longest, inverse_sums);
  }
  switch (tile.num_queries - first) {
    case 1:
      return AllDimensions<1>(tile, first, longest, inverse_sums);
    case 2:
      return AllDimensions<2>(tile, first, longest, inverse_sums);
    case 3:
      return AllDimensions<3>(tile, first, longest, inverse_sums);
    case 4:
      return AllDimensions<4>(tile, first, longest, inverse_sums);
    case 5:
      return AllDimensions<5>(tile, first, longest, inverse_sums);
  }
}

}  // namespace millrace::cpu::avx512
