// Computes which keys a tile's queries see. Everything here is static: each instruction set has its
// own.
#ifndef MILLRACE_EXECUTORS_CPU_KERNELS_ATTENTION_SPANS_H_
#define MILLRACE_EXECUTORS_CPU_KERNELS_ATTENTION_SPANS_H_

#include "executors/cpu/kernels/kernels.h"

namespace millrace::cpu {

struct Span {
  int begin;
  int end;
};

// The keys that the queries see together, from the beginning of a group of kTileRows on.
[[maybe_unused]] static inline Span SeenKeys(const AttentionTile& tile) {
  Span span{tile.begins[0], 0};
  for (int i = 0; i < tile.num_queries; ++i) {
    if (tile.begins[i] < span.begin) span.begin = tile.begins[i];
    if (tile.lengths[i] > span.end) span.end = tile.lengths[i];
  }
  span.begin = span.begin / kTileRows * kTileRows;
  return span;
}

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_KERNELS_ATTENTION_SPANS_H_
