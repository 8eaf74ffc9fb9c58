// Converts rows of a model file's tensor, in the file's format, to BF16 or float32 rows on the
// device.
#ifndef MILLRACE_KERNELS_WEIGHTS_DEQUANTIZE_H_
#define MILLRACE_KERNELS_WEIGHTS_DEQUANTIZE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/types.h"

namespace millrace::kernels {

// Q8_0 and Q4_1 are ggml's blocks of 32 elements (layouts in formats/tensor.h).
enum class StoredType : uint8_t { kF32, kF16, kBf16, kQ8_0, kQ4_1 };

struct DequantizeArgs {
  const void* source;  // [rows, columns], dense, 16-byte aligned
  StoredType stored;
  int64_t rows;
  int64_t columns;  // a multiple of 32 for the quantized types
  void* out;        // [rows, stride], 16-byte aligned
  Type type;        // of out: kBf16 (rounded to nearest even) or kF32
  int64_t
      stride;  // elements, at least `columns`; a multiple of 8. Columns past `columns` get zeros.
};

// Evaluates quantized elements in float32 (scale * code, or scale * code + minimum rounded once).
// For a fused weight, call once per part with `out` at the part's first row.
cudaError_t LaunchDequantize(const DequantizeArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_WEIGHTS_DEQUANTIZE_H_
