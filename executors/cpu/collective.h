// The communication between the ranks of a model whose weights are divided (RankSpec).
#ifndef MILLRACE_EXECUTORS_CPU_COLLECTIVE_H_
#define MILLRACE_EXECUTORS_CPU_COLLECTIVE_H_

#include <cstddef>

#include "absl/types/span.h"
#include "executors/ops.h"

namespace millrace::cpu {

// One rank's end. All ranks call the same functions in the same order with the same sizes, each on
// a thread of its own, and leave with the same values.
class Collective {
 public:
  virtual ~Collective() = default;

  // Replaces the values by the sums of all ranks' values, added in the order of the ranks.
  virtual void Sum(absl::Span<float> values) = 0;

  // Puts the ranks' shares of each row side by side: `part` is [rows][part_stride], of which this
  // rank's `share` has share.count values; `all` becomes [rows][stride], share.total values each.
  virtual void Gather(const float* part, size_t part_stride, int rows, const Share& share,
                      float* all, size_t stride) = 0;
};

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_COLLECTIVE_H_
