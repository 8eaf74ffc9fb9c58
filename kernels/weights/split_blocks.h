// Splits a file's blocks of four-bit weights into the plain codes and scales that LaunchTileFourBit
// takes.
#ifndef MILLRACE_KERNELS_WEIGHTS_SPLIT_BLOCKS_H_
#define MILLRACE_KERNELS_WEIGHTS_SPLIT_BLOCKS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "kernels/gemm/four_bit.h"
#include "kernels/types.h"
#include "kernels/weights/dequantize.h"

namespace millrace::kernels {

// Returns the format that LaunchSplitBlocks brings a type to; nullopt where there is none.
//   kQ4_0: kInt4 with scales in FP16 and zero points of 8, without loss.
//   kMxfp4: kMxfp4, without loss.
//   kQ4_1, kQ4K: kInt4Affine. Codes stay; the scale d (or d * scale) and the minimum m (or
//     -(dmin * minimum)) are rounded to BF16 once. That moves normally distributed weights by 0.5 %
//     of their root mean square, of which rounding each weight to BF16 takes 0.2 % and Q4_K itself
//     7.8 %.
std::optional<FourBitFormat> FourBitFormatOf(StoredType stored);

struct SplitBlocksArgs {
  const void* source;  // [rows, columns], dense, 16-byte aligned
  StoredType stored;   // one that FourBitFormatOf knows
  int64_t rows;
  int64_t columns;  // whole blocks
  // Written as TileFourBitArgs reads them: [rows][columns / 2], 16-byte aligned, and
  // [rows][columns / 32] each.
  uint8_t* codes;
  void* scales;
  Bf16* minima;  // null but for kInt4Affine
};
cudaError_t LaunchSplitBlocks(const SplitBlocksArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_WEIGHTS_SPLIT_BLOCKS_H_
