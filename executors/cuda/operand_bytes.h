// Sizes of kernel operands in bytes.
#ifndef MILLRACE_EXECUTORS_CUDA_OPERAND_BYTES_H_
#define MILLRACE_EXECUTORS_CUDA_OPERAND_BYTES_H_

#include <cstdint>

#include "kernels/gemm/grouped_linear.h"
#include "kernels/gemm/linear.h"
#include "kernels/types.h"

namespace millrace::cuda {

// Returns the number of scales of an activation [tokens, stride].
int64_t ScaleCount(kernels::Scaling scaling, int64_t stride, int tokens);

// Return the bytes that reading or writing the operand moves.
int64_t BytesOf(const kernels::Activation& x, int tokens);
int64_t BytesOf(const kernels::Weight& weight);
int64_t BytesOf(const kernels::GroupedWeight& weight);
// Returns the bytes of an input row: the plain input, or the residual, its addend, the sum and the
// norm.
int64_t BytesOf(const kernels::InputRow& row);

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_OPERAND_BYTES_H_
