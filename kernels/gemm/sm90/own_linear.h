// The arguments that all of our own linears on Hopper take, beside their config.
#ifndef MILLRACE_KERNELS_GEMM_SM90_OWN_LINEAR_H_
#define MILLRACE_KERNELS_GEMM_SM90_OWN_LINEAR_H_

#include <cstdint>

#include "kernels/types.h"

namespace millrace::kernels::sm90 {

struct OwnLinear {
  Weight weight;     // BF16 or FP8, constant while steps run
  Activation input;  // of the weight's type and stride (FP8: kTensor or kToken; kTokenGroup where
                     // the weight has kBlock, which not all kernels take)
  int64_t tokens;    // 1 ... the kernel's most
  void* output;      // [tokens][output_stride] BF16 or fp32, 16-byte aligned
  Type output_type;
  int64_t output_stride;   // elements; a multiple of 8, at least weight.rows
  unsigned* tile_counter;  // one stream's at a time; 0 before the first launch, and left so
  // Instead of output, which is null: see LinearArgs. Not with kBlock.
  Activation gated = {};
};

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_OWN_LINEAR_H_
