#include "executors/cpu/activation.h"

#include <algorithm>

namespace millrace::cpu {
namespace {

// Of rows that are filled up to a multiple of 32 values.
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

CpuActivation::CpuActivation(ActivationArena& arena, Form form, int rows, int width)
    : arena_(arena),
      form_(form),
      rows_(rows),
      width_(width),
      row_bytes_(RowBytes(form, width)),
      data_(arena.Take(std::max<size_t>(1, rows * row_bytes_))) {}

}  // namespace millrace::cpu
