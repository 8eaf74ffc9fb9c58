#include "executors/activation_arena.h"

#include <algorithm>
#include <cstdlib>

#include "base/log.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

}  // namespace

uint8_t* ActivationArena::Take(size_t bytes) {
  size_t begin = 0;
  auto next = taken_.begin();
  for (; next != taken_.end() && next->begin < begin + bytes; ++next)
    begin = (next->end + kAlignment - 1) / kAlignment * kAlignment;
  if (begin + bytes > bytes_) {
    kLog.Error("a step takes more activations than the arena's ", bytes_, " bytes");
    std::abort();
  }
  taken_.insert(next, {begin, begin + bytes});
  peak_ = std::max(peak_, begin + bytes);
  return memory_ + begin;
}

void ActivationArena::Return(uint8_t* data) {
  const size_t begin = data - memory_;
  taken_.erase(
      std::find_if(taken_.begin(), taken_.end(), [begin](Extent e) { return e.begin == begin; }));
}

}  // namespace millrace
