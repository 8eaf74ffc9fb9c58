#include <algorithm>
#include <cmath>

#include "executors/cpu/kernels/attention_spans.h"
#include "executors/cpu/kernels/kernel_sets.h"
#include "formats/tensors/float16.h"

namespace millrace::cpu::plain {
namespace {

const uint16_t* Page(const AttentionTile& tile, int position) {
  const size_t block = static_cast<size_t>(tile.cache.block_table[position / tile.block_size]);
  return reinterpret_cast<const uint16_t*>(tile.cache.pages + block * tile.block_bytes);
}

const uint16_t* Key(const AttentionTile& tile, int position) {
  const size_t group = position % tile.block_size / kTileRows;
  return Page(tile, position) + group * kTileRows * tile.head_size + position % kTileRows;
}

const uint16_t* Value(const AttentionTile& tile, int position) {
  return Page(tile, position) +
         static_cast<size_t>(tile.block_size + position % tile.block_size) * tile.head_size;
}

// One query: the tile's sharing of loads is for machines with registers to spare.
void AttendOne(const AttentionTile& tile, int index) {
  const float* const query = tile.queries[index];
  float* const scores = tile.scores + index * tile.score_stride;
  float* const out = tile.out + static_cast<size_t>(index) * tile.head_size;
  const int first = tile.begins[index];
  const int length = tile.lengths[index];
  float largest = -INFINITY;
  for (int i = first; i < length; ++i) {
    const uint16_t* key = Key(tile, i);
    float dot = 0;
    for (int d = 0; d < tile.head_size; ++d) dot += query[d] * HalfToFloat(key[d * kTileRows]);
    scores[i] = dot * tile.scale;
    if (tile.soft_cap != 0) scores[i] = tile.soft_cap * std::tanh(scores[i] / tile.soft_cap);
    if (tile.biases != nullptr) scores[i] += tile.biases[index][i];
    largest = std::max(largest, scores[i]);
  }
  if (tile.sinks != nullptr) largest = std::max(largest, tile.sinks[index]);
  float sum = tile.sinks == nullptr ? 0 : std::exp(tile.sinks[index] - largest);
  std::fill_n(out, tile.head_size, 0.0f);
  for (int i = first; i < length; ++i) {
    const float p = std::exp(scores[i] - largest);
    sum += p;
    const uint16_t* value = Value(tile, i);
    for (int d = 0; d < tile.head_size; ++d) out[d] += p * HalfToFloat(value[d]);
  }
  for (int d = 0; d < tile.head_size; ++d) out[d] /= sum;
}

}  // namespace

void Attention(const AttentionTile& tile) {
  for (int i = 0; i < tile.num_queries; ++i) AttendOne(tile, i);
}

}  // namespace millrace::cpu::plain
