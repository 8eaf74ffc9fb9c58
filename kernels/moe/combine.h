// The end of a mixture of experts: the experts' outputs of each token, times their scores, join the
// residual stream.
#ifndef MILLRACE_KERNELS_MOE_COMBINE_H_
#define MILLRACE_KERNELS_MOE_COMBINE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/moe/route.h"
#include "kernels/types.h"

namespace millrace::kernels {

// For each token, in fp32: sum = 0; for each slot in order sum = fma(score, y, sum); then, where
// there is a shared network, sum = fma(gate, shared, sum) with gate = 1 / (1 + exp(-logit)), or 1
// without logits; residual = fma(factor, sum, residual). With `partial` that gets the sum instead,
// rounded to BF16: a rank's part of what an all-reduce adds up.
//
// A token's bits depend on that token alone. Each input is read once. `residual` is written. Where
// a norm follows, LaunchRmsNorm does both (RmsNormArgs::mixture).
struct CombineArgs {
  float* residual;      // [tokens, width], dense, 16-byte aligned
  const void* y;        // [tokens * slots, y_stride], 16-byte aligned: row token * slots + slot
  Type y_type;          // kBf16 or kF32
  int64_t y_stride;     // elements; a multiple of 8, at least width
  const float* scores;  // [tokens, slots]
  // The slots' experts, [tokens, slots]: those outside [first_expert, first_expert + experts) have
  // no row of y, and are left out. Null: all have one.
  const int32_t* ids = nullptr;
  int first_expert = 0, experts = 0;
  Product shared = {};                   // [tokens, width]; data null: none
  const float* shared_logits = nullptr;  // of token t at t * shared_logit_stride; or null
  int64_t shared_logit_stride = 0;       // elements
  float factor = 1;
  int tokens;
  int slots;                // 1 to kMaxChosen
  int width;                // a multiple of 8
  Bf16* partial = nullptr;  // [tokens, width], dense, 16-byte aligned; in place of the residual
};

// Returns whether a launch would accept the arguments.
bool IsValid(const CombineArgs& args);

cudaError_t LaunchCombine(const CombineArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_MOE_COMBINE_H_
