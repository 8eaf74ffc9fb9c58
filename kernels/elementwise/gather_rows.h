// Gathers rows of an activation: the positions whose logits are wanted, so that the head runs on
// them alone, or a mixture's tokens by expert.
#ifndef MILLRACE_KERNELS_ELEMENTWISE_GATHER_ROWS_H_
#define MILLRACE_KERNELS_ELEMENTWISE_GATHER_ROWS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/types.h"

namespace millrace::kernels {

// Copies out[r] = in[indices[r] / slots] exactly: whole rows of `stride` elements including
// padding, with their scales (kToken: 1 per row; kTokenGroup: stride / 128 per row; kTensor: none,
// since both sides have the same scales[0]). `in` and `out` have the same type, scaling and stride,
// and must not overlap.
struct GatherRowsArgs {
  Activation in;  // [tokens, stride]
  int tokens;
  const int32_t* indices;  // [rows], each in [0, tokens * slots); may repeat
  int rows;
  Activation out;  // [rows, stride], dense
  // With a GroupedRows' order (gemm/grouped.h) as indices, rows come by group: slots is what a
  // token has of pairs, and rows from *count on, which belong to no group, are not written.
  int slots = 1;
  const int32_t* count = nullptr;  // [1], on the device, or null: all rows
};

cudaError_t LaunchGatherRows(const GatherRowsArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ELEMENTWISE_GATHER_ROWS_H_
