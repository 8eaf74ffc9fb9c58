// Activations of the CPU executor.
#ifndef MILLRACE_EXECUTORS_CPU_ACTIVATION_H_
#define MILLRACE_EXECUTORS_CPU_ACTIVATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "executors/activation_arena.h"
#include "executors/cpu/kernels/kernels.h"
#include "executors/decoder_ops.h"

namespace millrace::cpu {

// Where the activations of a step lie. Every buffer has a row, or a fixed number of them, for each
// of the step's tokens, so the arena deals in bytes a token, and what it takes depends on the model
// alone.
struct StepMemory {
  static constexpr size_t kAlignment = 64;  // a cache line

  ActivationArena arena{kAlignment};
  uint8_t* data = nullptr;
  int rows = 0;           // the step's tokens
  bool exceeded = false;  // the step has taken more than there is
};

// [rows][width], each row `width` values in `form`, filled up to a multiple of 32 values. One that
// the arena has no range for lies on the heap: the step fails, but goes on to its end, since other
// ranks wait for this one's values.
class CpuActivation {
 public:
  CpuActivation() = default;
  // `rows`: at most memory.rows; the buffer has `several` times as many.
  CpuActivation(StepMemory& memory, Form form, int rows, int width, int several = 1);
  CpuActivation(CpuActivation&& other) noexcept
      : arena_(std::exchange(other.arena_, nullptr)),
        begin_(other.begin_),
        heap_(std::move(other.heap_)),
        form_(other.form_),
        rows_(other.rows_),
        width_(other.width_),
        row_bytes_(other.row_bytes_),
        data_(other.data_) {}
  CpuActivation& operator=(CpuActivation&&) = delete;
  ~CpuActivation() {
    if (arena_ != nullptr) arena_->Return(begin_);
  }

  Form form() const { return form_; }
  int rows() const { return rows_; }
  int width() const { return width_; }
  size_t row_bytes() const { return row_bytes_; }
  uint8_t* Row(int row) const { return data_ + row * row_bytes_; }

  // Valid for Form::kFloat.
  size_t row_floats() const { return row_bytes_ / sizeof(float); }
  float* Floats(int row) const { return reinterpret_cast<float*>(Row(row)); }

  // Returns the address of the values from `column` on, a multiple of 32 in quantized blocks.
  uint8_t* At(int row, int column) const;

 private:
  struct AlignedDelete {
    void operator()(uint8_t* data) const {
      ::operator delete (data, std::align_val_t{StepMemory::kAlignment});
    }
  };

  ActivationArena* arena_ = nullptr;
  size_t begin_ = 0;
  std::unique_ptr<uint8_t, AlignedDelete> heap_;
  Form form_ = Form::kFloat;
  int rows_ = 0;
  int width_ = 0;
  size_t row_bytes_ = 0;
  uint8_t* data_ = nullptr;
};

// A role's buffer (ops.h): floats, but for the logits' wanted rows of the head's input.
template <typename Role>
struct CpuBuffer : Role {
  template <typename... Args>
  explicit CpuBuffer(CpuActivation activation, Args&&... args)
      : Role(std::forward<Args>(args)...), values(std::move(activation)) {}
  CpuActivation values;
};
using CpuResidual = CpuBuffer<ResidualBuffer>;
using CpuQkv = CpuBuffer<QkvBuffer>;
using CpuQuery = CpuBuffer<QueryBuffer>;  // k and v are still behind q
using CpuLogits = CpuBuffer<LogitsBuffer>;

struct CpuLinearInput : LinearInputBuffer {
  absl::InlinedVector<CpuActivation, 1> forms;  // each another Form
};

template <typename Role>
CpuActivation& Values(const std::unique_ptr<Role>& handle) {
  return static_cast<CpuBuffer<Role>&>(*handle).values;
}

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_ACTIVATION_H_
