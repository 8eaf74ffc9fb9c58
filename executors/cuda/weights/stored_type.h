// Maps types of a model's files to those that the device's kernels read.
#ifndef MILLRACE_EXECUTORS_CUDA_WEIGHTS_STORED_TYPE_H_
#define MILLRACE_EXECUTORS_CUDA_WEIGHTS_STORED_TYPE_H_

#include <optional>

#include "formats/tensors/tensor.h"
#include "kernels/weights/dequantize.h"

namespace millrace::cuda {

// Returns LaunchDequantize's name of a type; nullopt for FP8 and for whole numbers.
std::optional<kernels::StoredType> StoredTypeOf(TensorType type);

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_WEIGHTS_STORED_TYPE_H_
