#include "executors/cpu/kernels/float_attention.h"

#include <algorithm>
#include <cmath>

namespace millrace::cpu {
namespace {

const float* Page(const AttentionTile& tile, int position) {
  const size_t block = static_cast<size_t>(tile.cache.block_table[position / tile.block_size]);
  return reinterpret_cast<const float*>(tile.cache.pages + block * tile.block_bytes);
}

// scores[position .. position + 16) = query . k: the lanes are keys, so that a compiler's vectors
// keep each sum's order. Lanes past the last key hold anything.
void ScoreGroup(const AttentionTile& tile, const float* query, int position, float* scores) {
  const float* keys =
      Page(tile, position) + static_cast<size_t>(position % tile.block_size) * tile.head_size;
  float sums[kTileRows] = {};
  for (int d = 0; d < tile.head_size; ++d) {
    for (int i = 0; i < kTileRows; ++i) sums[i] += query[d] * keys[d * kTileRows + i];
  }
  std::copy_n(sums, kTileRows, scores + position);
}

void AttendOne(const AttentionTile& tile, int query) {
  const int first = tile.begins[query];
  const int length = tile.lengths[query];
  float* const scores = tile.scores + query * tile.score_stride;
  float* const out = tile.out + static_cast<size_t>(query) * tile.head_size;
  for (int i = first / kTileRows * kTileRows; i < length; i += kTileRows) {
    ScoreGroup(tile, tile.queries[query], i, scores);
  }
  float largest = -INFINITY;
  for (int i = first; i < length; ++i) {
    scores[i] *= tile.scale;
    if (tile.soft_cap != 0) scores[i] = tile.soft_cap * std::tanh(scores[i] / tile.soft_cap);
    if (tile.biases != nullptr) scores[i] += tile.biases[query][i];
    largest = std::max(largest, scores[i]);
  }
  if (tile.sinks != nullptr) largest = std::max(largest, tile.sinks[query]);
  float sum = tile.sinks == nullptr ? 0 : std::exp(tile.sinks[query] - largest);
  std::fill_n(out, tile.head_size, 0.0f);
  for (int i = first; i < length; ++i) {
    const float p = std::exp(scores[i] - largest);
    sum += p;
    const float* value =
        Page(tile, i) + static_cast<size_t>(tile.block_size + i % tile.block_size) * tile.head_size;
    for (int d = 0; d < tile.head_size; ++d) out[d] += p * value[d];
  }
  for (int d = 0; d < tile.head_size; ++d) out[d] /= sum;
}

}  // namespace

void AttendFloats(const AttentionTile& tile) {
  for (int i = 0; i < tile.num_queries; ++i) AttendOne(tile, i);
}

void AppendFloats(const float* k, const float* v, int head_size, float* keys, float* values) {
  for (int d = 0; d < head_size; ++d) keys[d * kTileRows] = k[d];
  std::copy_n(v, head_size, values);
}

}  // namespace millrace::cpu
