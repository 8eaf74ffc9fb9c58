// Helpers that the files of TorchOps share.
#ifndef MILLRACE_EXECUTORS_TORCH_OP_UTIL_H_
#define MILLRACE_EXECUTORS_TORCH_OP_UTIL_H_

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "executors/torch/torch_ops.h"

namespace millrace::aten {

inline LinearInput AsLinearInput(at::Tensor tensor) {
  return std::make_unique<TorchBuffer<LinearInputBuffer>>(std::move(tensor));
}

// Copies numbers into a tensor of int64.
template <typename Number>
at::Tensor Indexes(const Number* numbers, size_t count) {
  at::Tensor indexes = at::empty({static_cast<int64_t>(count)}, at::kLong);
  std::copy_n(numbers, count, indexes.mutable_data_ptr<int64_t>());
  return indexes;
}

}  // namespace millrace::aten

#endif  // MILLRACE_EXECUTORS_TORCH_OP_UTIL_H_
