// What the files of TorchOps share: ops are handed their own kinds of activations and inputs.
#ifndef MILLRACE_EXECUTORS_TORCH_OP_UTIL_H_
#define MILLRACE_EXECUTORS_TORCH_OP_UTIL_H_

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "executors/cpu/step_input.h"
#include "executors/ops.h"
#include "executors/torch/torch_ops.h"

namespace millrace::aten {

inline const at::Tensor& Cast(const Activation& activation) {
  return static_cast<const TorchActivation&>(*activation).tensor;
}
inline at::Tensor& Cast(Activation& activation) {
  return static_cast<TorchActivation&>(*activation).tensor;
}
inline const cpu::CpuStepInput& Cast(const StepInput& input) {
  return static_cast<const cpu::CpuStepInput&>(input);
}

inline Activation Make(at::Tensor tensor) {
  return std::make_unique<TorchActivation>(std::move(tensor));
}

// A copy, in int64.
template <typename Number>
at::Tensor Indexes(const Number* numbers, size_t count) {
  at::Tensor indexes = at::empty({static_cast<int64_t>(count)}, at::kLong);
  std::copy_n(numbers, count, indexes.mutable_data_ptr<int64_t>());
  return indexes;
}

}  // namespace millrace::aten

#endif  // MILLRACE_EXECUTORS_TORCH_OP_UTIL_H_
