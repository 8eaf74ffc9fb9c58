// What lies between the qkv linear and attention: the heads' biases, norms and rotation (rope.h),
// and the append of keys and values to their pages.
#ifndef MILLRACE_KERNELS_ATTENTION_ROPE_APPEND_H_
#define MILLRACE_KERNELS_ATTENTION_ROPE_APPEND_H_

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <cstdint>

#include "kernels/attention/rope.h"
#include "kernels/types.h"

namespace millrace::kernels {

// For each token: biases are added, q and k of every head normed (both if asked for) and turned by
// the token's position; q goes to `q`, k and v go to position positions[t] of sequence slots[t] in
// `pages`. All in fp32 from qkv on, rounded once: to what the pages hold (KvPages), FP8 after
// division by the scale, nearest even, saturated.
//
// A token's bits depend on that token alone. Two tokens must not have one place in the pages, but
// padding tokens may share a dummy place: what lies there is then any one of them.
//
// Where each row of a step has one token attention can do all this itself (AttentionArgs::qkv).
struct RopeAppendArgs {
  Product qkv;  // [tokens, (heads + 2 * pages.kv_heads) * pages.head_size]: all q, all k, all v
  int tokens;
  int heads;
  const int32_t* positions;  // [tokens], each in [0, max positions)
  const int32_t* slots;      // [tokens], rows of `tables`
  BlockTables tables;
  Rope rope;

  Bf16* q;        // [tokens, heads * head_size], dense, 16-byte aligned
  KvPages pages;  // 16-byte aligned, block_stride a multiple of 16
};

cudaError_t LaunchRopeAppend(const RopeAppendArgs& args, cudaStream_t stream);

// rotations[p][i] = magnitude * (cos, sin) of p * base^(-2i / dimensions) / factors[i], computed in
// double and rounded to fp32. Run at load.
struct FillRotationsArgs {
  float2* rotations;  // [positions, dimensions / 2]
  int positions;
  int dimensions;  // even
  double base;
  const float* factors;  // [dimensions / 2] on the device, or null for all ones
  double magnitude = 1;
};

cudaError_t LaunchFillRotations(const FillRotationsArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ATTENTION_ROPE_APPEND_H_
