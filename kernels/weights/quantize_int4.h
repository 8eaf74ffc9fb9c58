// Quantizes BF16 weights to four bits when a model is loaded, for FourBitType::kInt4Affine.
#ifndef MILLRACE_KERNELS_WEIGHTS_QUANTIZE_INT4_H_
#define MILLRACE_KERNELS_WEIGHTS_QUANTIZE_INT4_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/types.h"

namespace millrace::kernels {

struct QuantizeInt4Args {
  const Bf16* source;  // [rows, stride], 16-byte aligned; padding columns hold zeros
  int64_t rows;
  int64_t stride;  // a multiple of kColumnPadding
  // Written as TileFourBitArgs reads them, with `stride` as its columns: [rows][stride / 2],
  // 16-byte aligned, and [rows][stride / 32] each.
  uint8_t* codes;
  Bf16* scales;
  Bf16* minima;
};

// Quantizes each 32 columns of a row by themselves, by the rule of int4_rule.cuh: the CPU's rule
// for Q4_1, with scales in BF16. Of normally distributed weights the root mean square error is 7.4
// % of theirs. Weights of zero stay zero where all 32 are.
cudaError_t LaunchQuantizeInt4(const QuantizeInt4Args& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_WEIGHTS_QUANTIZE_INT4_H_
