// Divides a model's weights among the ranks of tensor parallelism (arXiv:1909.08053). Pure
// functions of shapes: every rank computes the same division.
#ifndef MILLRACE_EXECUTORS_WEIGHTS_SHARES_H_
#define MILLRACE_EXECUTORS_WEIGHTS_SHARES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "executors/ops.h"

namespace millrace {

// Cuts `total` elements into shares of whole units of `unit` elements, in the order of the ranks:
// each rank gets as many units as the first, until none are left. All of the elements on one rank.
Share DivideUnits(int64_t total, int64_t unit, RankSpec rank);

// Rows and columns that are neither heads nor blocks are divided in multiples of this: whole tiles
// of the CPU's, whole lines of a GPU's.
inline constexpr int64_t kShareMultiple = 16;

// A rank's heads of an attention layer. Query head h reads kv head h / (heads / kv_heads), as in
// the whole layer, counted from the rank's first ones; q.size is a multiple of kv.size.
struct HeadShares {
  Share q;
  Share kv;
  bool owns_kv;  // else an earlier rank holds the same kv head
};

// Cuts a layer by its kv heads, each with the query heads that read it. More than one rank a kv
// head hold it each, and divide its query heads. Shares are multiples of `q_unit` query heads and
// `kv_unit` kv heads, but for the end of all heads.
HeadShares DivideHeads(int heads, int kv_heads, int64_t q_unit, int64_t kv_unit, RankSpec rank);

// Returns how many heads, or other groups of `size` elements, fill whole blocks of `block`
// elements.
int64_t UnitOf(int64_t size, int64_t block);

// Returns the rows of a share of heads.
Share Elements(const Share& heads, int64_t head_size);

// Returns the share that is all of `total` elements.
inline Share Whole(int64_t total) {
  return {.total = total, .begin = 0, .count = total, .size = total};
}

// Returns the share's elements of values[first .. first + total), and zeros up to its size.
std::vector<float> Cut(absl::Span<const float> values, int64_t first, const Share& share);

// Returns the shares' elements of consecutive parts, one behind the other.
std::vector<float> Cut(absl::Span<const float> values, absl::Span<const Share> shares);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_WEIGHTS_SHARES_H_
