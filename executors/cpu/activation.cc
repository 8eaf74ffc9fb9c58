#include "executors/cpu/activation.h"

#include <algorithm>

namespace millrace::cpu {
namespace {

size_t RowBytes(Form form, int width) {
  const size_t blocks = (width + kBlock - 1) / kBlock;
  return blocks * (form == Form::kFloat ? kBlock * sizeof(float) : sizeof(QuantizedBlock));
}

}  // namespace

CpuActivation::CpuActivation(ActivationArena& arena, Form form, int rows, int width)
    : arena_(arena),
      form_(form),
      rows_(rows),
      width_(width),
      row_bytes_(RowBytes(form, width)),
      data_(arena.Take(std::max<size_t>(1, rows * row_bytes_))) {}

}  // namespace millrace::cpu
