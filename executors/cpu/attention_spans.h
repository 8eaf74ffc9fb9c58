// Computes which keys a tile's queries see. Everything here is static: each instruction set has its
// own.
#ifndef MILLRACE_EXECUTORS_CPU_ATTENTION_SPANS_H_
#define MILLRACE_EXECUTORS_CPU_ATTENTION_SPANS_H_

#include "executors/cpu/kernels.h"

namespace millrace::cpu {

// The first key that a query sees.
[[maybe_unused]] static inline int First(const AttentionTile& tile, int query) {
  const int length = tile.lengths[query];
  return tile.window > 0 && tile.window < length ? length - tile.window : 0;
}

struct Span {
  int begin;
  int end;
};

// The keys that the queries see together, from the beginning of a group of kTileRows on.
[[maybe_unused]] static inline Span SeenKeys(const AttentionTile& tile) {
  Span span{First(tile, 0), 0};
  for (int i = 0; i < tile.num_queries; ++i) {
    if (First(tile, i) < span.begin) span.begin = First(tile, i);
    if (tile.lengths[i] > span.end) span.end = tile.lengths[i];
  }
  span.begin = span.begin / kTileRows * kTileRows;
  return span;
}

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_ATTENTION_SPANS_H_
