// Dummy weights (--load-format dummy), drawn on the device. Like vLLM's initialize_dummy_weights
// they are uniform in [-1e-3, 1e-3], since zeros run faster than a model's weights and large
// numbers overflow.
#ifndef MILLRACE_KERNELS_WEIGHTS_FILL_H_
#define MILLRACE_KERNELS_WEIGHTS_FILL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/types.h"

namespace millrace::kernels {

struct FillArgs {
  void* out;  // [rows, stride], 16-byte aligned
  Type type;
  int64_t rows;
  int64_t columns;
  int64_t stride;  // elements, a multiple of 16, at least `columns`; columns past it get zeros
  uint64_t seed;
  float low = -1e-3f;
  float high = 1e-3f;  // for kFp8 in units of the codes: at most 448
};

// Fills element (row, column) with a function of the seed and row * columns + column alone
// (SplitMix64 of a counter, Steele et al. 2014), rounded to `type`. Each tensor of a model needs a
// seed of its own.
cudaError_t LaunchFill(const FillArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_WEIGHTS_FILL_H_
