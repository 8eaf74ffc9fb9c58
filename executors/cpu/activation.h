// Activations of the CPU executor.
#ifndef MILLRACE_EXECUTORS_CPU_ACTIVATION_H_
#define MILLRACE_EXECUTORS_CPU_ACTIVATION_H_

#include <cstddef>
#include <cstdint>

#include "executors/activation_arena.h"
#include "executors/cpu/kernels.h"
#include "executors/ops.h"

namespace millrace::cpu {

// [rows][width], each row `width` values in `form`, filled up to a multiple of 32 values.
class CpuActivation : public ActivationBuffer {
 public:
  CpuActivation(ActivationArena& arena, Form form, int rows, int width);
  ~CpuActivation() override { arena_.Return(data_); }
  CpuActivation(const CpuActivation&) = delete;
  CpuActivation& operator=(const CpuActivation&) = delete;

  Form form() const { return form_; }
  int rows() const { return rows_; }
  int width() const { return width_; }
  size_t row_bytes() const { return row_bytes_; }
  uint8_t* Row(int row) const { return data_ + row * row_bytes_; }

  // Of Form::kFloat.
  size_t row_floats() const { return row_bytes_ / sizeof(float); }
  float* Floats(int row) const { return reinterpret_cast<float*>(Row(row)); }

  // Where the values from `column`, a multiple of 32 in quantized blocks, lie.
  uint8_t* At(int row, int column) const;

 private:
  ActivationArena& arena_;
  Form form_;
  int rows_;
  int width_;
  size_t row_bytes_;
  uint8_t* data_;
};

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_ACTIVATION_H_
