// Picks rows of an activation: the head runs on the positions whose logits are wanted.
#ifndef MILLRACE_KERNELS_ELEMENTWISE_GATHER_ROWS_H_
#define MILLRACE_KERNELS_ELEMENTWISE_GATHER_ROWS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/types.h"

namespace millrace::kernels {

// out[r] = in[indices[r]]: whole rows of `stride` elements, padding included, with their scales
// (kToken: 1 a row; kTokenGroup: stride / 128 a row; kTensor: none, both sides have the same
// scales[0]). An exact copy. `in` and `out` have one type, scaling and stride, and must not
// overlap.
struct GatherRowsArgs {
  Activation in;  // [tokens, stride]
  int tokens;
  const int32_t* indices;  // [rows], each in [0, tokens); repeats are fine
  int rows;
  Activation out;  // [rows, stride], dense
};

cudaError_t LaunchGatherRows(const GatherRowsArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ELEMENTWISE_GATHER_ROWS_H_
