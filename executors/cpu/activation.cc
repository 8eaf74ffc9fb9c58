#include "executors/cpu/activation.h"

#include <new>
#include <optional>

namespace millrace::cpu {
namespace {

// The bytes of a row that is filled up to a multiple of 32 values.
size_t RowBytes(Form form, int64_t width) {
  const size_t blocks = (width + kBlock - 1) / kBlock;
  switch (form) {
    case Form::kFloat:
      return blocks * kBlock * sizeof(float);
    case Form::kBf16:
      return blocks * kBlock * sizeof(uint16_t);
    case Form::kQ8:
      break;
  }
  return blocks * sizeof(QuantizedBlock);
}

}  // namespace

uint8_t* CpuActivation::At(int row, int column) const {
  switch (form_) {
    case Form::kFloat:
      return Row(row) + column * sizeof(float);
    case Form::kBf16:
      return Row(row) + column * sizeof(uint16_t);
    case Form::kQ8:
      break;
  }
  return Row(row) + column / kBlock * sizeof(QuantizedBlock);
}

CpuActivation::CpuActivation(StepMemory& memory, Form form, int rows, int width, int several)
    : form_(form), rows_(rows * several), width_(width), row_bytes_(RowBytes(form, width)) {
  const size_t bytes = row_bytes_ * several;
  if (const std::optional<size_t> begin = memory.arena.Take(bytes)) {
    arena_ = &memory.arena;
    begin_ = *begin;
    data_ = memory.data + begin_ * memory.rows;
    return;
  }
  memory.exceeded = true;
  heap_.reset(static_cast<uint8_t*>(
      ::operator new (bytes* memory.rows, std::align_val_t{StepMemory::kAlignment})));
  data_ = heap_.get();
}

}  // namespace millrace::cpu
