// Gathers rows of an activation, so that the head runs only on positions whose logits are wanted.
#ifndef MILLRACE_KERNELS_ELEMENTWISE_GATHER_ROWS_H_
#define MILLRACE_KERNELS_ELEMENTWISE_GATHER_ROWS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/types.h"

namespace millrace::kernels {

// Copies out[r] = in[indices[r]] exactly: whole rows of `stride` elements including padding, with
// their scales (kToken: 1 per row; kTokenGroup: stride / 128 per row; kTensor: none, since both
// sides have the same scales[0]). `in` and `out` have the same type, scaling and stride, and must
// not overlap.
struct GatherRowsArgs {
  Activation in;  // [tokens, stride]
  int tokens;
  const int32_t* indices;  // [rows], each in [0, tokens); may repeat
  int rows;
  Activation out;  // [rows, stride], dense
};

cudaError_t LaunchGatherRows(const GatherRowsArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ELEMENTWISE_GATHER_ROWS_H_
