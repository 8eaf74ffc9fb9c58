// Dummy weights (--load-format dummy): numbers drawn on the device, as vLLM's
// initialize_dummy_weights draws them: uniform in [-1e-3, 1e-3], since zeros run faster than a
// model's weights do and large numbers overflow.
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

// Element (row, column) is a function of the seed and row * columns + column alone (SplitMix64 of a
// counter, Steele et al. 2014), rounded to `type`. Two tensors of one model want two seeds.
cudaError_t LaunchFill(const FillArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_WEIGHTS_FILL_H_
