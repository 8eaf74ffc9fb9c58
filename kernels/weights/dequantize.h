// Converts rows of a model file's tensor, in the file's format, to BF16 or float32 rows on the
// device.
#ifndef MILLRACE_KERNELS_WEIGHTS_DEQUANTIZE_H_
#define MILLRACE_KERNELS_WEIGHTS_DEQUANTIZE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/types.h"

namespace millrace::kernels {

// The types of a model's weights but for FP8, named and laid out as in formats/tensors/tensor.h:
// blocks of 32 elements, of 256 where the name ends in K and for all kIq but kIq4Nl, and of 128 for
// kInt4x128.
enum class StoredType : uint8_t {
  kF32,
  kF16,
  kBf16,
  kQ8_0,
  kQ4_1,
  kQ4_0,
  kQ5_0,
  kQ5_1,
  kQ2K,
  kQ3K,
  kQ4K,
  kQ5K,
  kQ6K,
  kIq4Nl,
  kMxfp4,
  kInt4x32,
  kInt4x128,
  kIq4Xs,
  kIq3S,
  kIq3Xxs,
  kIq2S,
  kIq2Xs,
  kIq2Xxs,
  kIq1S,
  kIq1M,
};

struct DequantizeArgs {
  const void* source;  // [rows, columns], dense, 16-byte aligned
  StoredType stored;
  int64_t rows;
  int64_t columns;  // whole blocks of the quantized types
  void* out;        // [rows, stride], 16-byte aligned
  Type type;        // of out: kBf16 (rounded to nearest even) or kF32
  int64_t
      stride;  // elements, at least `columns`; a multiple of 8. Columns past `columns` get zeros.
};

// Evaluates quantized elements in float32, with the bits of the host's reader
// (formats/tensors/dequantize.h), and rounds them once more for BF16. For a fused weight, call once
// per part with `out` at the part's first row.
cudaError_t LaunchDequantize(const DequantizeArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_WEIGHTS_DEQUANTIZE_H_
