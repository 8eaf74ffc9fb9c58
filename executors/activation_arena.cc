#include "executors/activation_arena.h"

#include <algorithm>

namespace millrace {

std::optional<size_t> ActivationArena::Take(size_t size) {
  size_t begin = 0;
  auto next = taken_.begin();
  for (; next != taken_.end() && next->begin < begin + size; ++next)
    begin = (next->end + alignment_ - 1) / alignment_ * alignment_;
  if (begin + size > capacity_) return std::nullopt;
  taken_.insert(next, {begin, begin + size});
  peak_ = std::max(peak_, begin + size);
  return begin;
}

void ActivationArena::Return(size_t begin) {
  taken_.erase(std::find_if(taken_.begin(), taken_.end(),
                            [begin](Range range) { return range.begin == begin; }));
}

}  // namespace millrace
