#include "executors/cpu/activation.h"

#include <algorithm>
#include <cstdlib>

#include "base/log.h"

namespace millrace::cpu {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

size_t RowBytes(Form form, int width) {
  const size_t blocks = (width + kBlock - 1) / kBlock;
  return blocks * (form == Form::kFloat ? kBlock * sizeof(float) : sizeof(QuantizedBlock));
}

}  // namespace

uint8_t* ActivationArena::Take(size_t bytes) {
  size_t begin = 0;
  auto next = taken_.begin();
  for (; next != taken_.end() && next->begin < begin + bytes; ++next)
    begin = (next->end + 63) / 64 * 64;
  if (begin + bytes > memory_.bytes()) {
    kLog.Error("a step takes more activations than the arena's ", memory_.bytes(), " bytes");
    std::abort();
  }
  taken_.insert(next, {begin, begin + bytes});
  return memory_.data() + begin;
}

void ActivationArena::Return(uint8_t* data) {
  const size_t begin = data - memory_.data();
  taken_.erase(
      std::find_if(taken_.begin(), taken_.end(), [begin](Extent e) { return e.begin == begin; }));
}

CpuActivation::CpuActivation(ActivationArena& arena, Form form, int rows, int width)
    : arena_(arena),
      form_(form),
      rows_(rows),
      width_(width),
      row_bytes_(RowBytes(form, width)),
      data_(arena.Take(std::max<size_t>(1, rows * row_bytes_))) {}

}  // namespace millrace::cpu
