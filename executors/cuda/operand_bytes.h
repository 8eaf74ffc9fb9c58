// How many bytes the operands of kernels have.
#ifndef MILLRACE_EXECUTORS_CUDA_OPERAND_BYTES_H_
#define MILLRACE_EXECUTORS_CUDA_OPERAND_BYTES_H_

#include <cstdint>

#include "kernels/gemm/linear.h"
#include "kernels/types.h"

namespace millrace::cuda {

// The scales of an activation of so many tokens, [tokens, stride].
int64_t ScaleCount(kernels::Scaling scaling, int64_t stride, int tokens);

// What reading or writing it takes.
int64_t BytesOf(const kernels::Activation& x, int tokens);
int64_t BytesOf(const kernels::Weight& weight);
// Either plain, or a residual, what is added, the sum and the norm.
int64_t BytesOf(const kernels::InputRow& row);

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_OPERAND_BYTES_H_
