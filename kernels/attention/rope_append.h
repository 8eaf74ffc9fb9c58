// The step between the qkv linear and attention: biases, norms and rotation of the heads (rope.h),
// and the append of keys and values to their pages.
#ifndef MILLRACE_KERNELS_ATTENTION_ROPE_APPEND_H_
#define MILLRACE_KERNELS_ATTENTION_ROPE_APPEND_H_

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <cstdint>

#include "kernels/attention/rope.h"
#include "kernels/types.h"

namespace millrace::kernels {

// For each token: biases are added, q and k of every head are normed (optionally) and rotated by
// the token's position. q goes to `q`; k and v go to position positions[t] of sequence slots[t] in
// `pages`. All arithmetic is float32 and rounded once to the pages' type (KvPages); FP8 is divided
// by the scale and rounded to nearest even, saturated.
//
// With `norms_across_heads` (OLMo 2, arXiv:2501.00656) a norm's mean is over all heads of q, or of
// k, and its weight has an element for each of their values: rope.q_norm is [heads *
// pages.head_size], rope.k_norm [pages.kv_heads * pages.head_size]. Heads have no gates then.
//
// A token's bits depend on that token alone. Two tokens must not share a position in the pages,
// except that padding tokens may share one: it then holds any one of them.
//
// When each row of a step has one token, attention can do all this itself (AttentionArgs::qkv), but
// for norms across heads.
struct RopeAppendArgs {
  Product qkv;  // [tokens, QkvWidth]: all q (with their gates where rope has some), all k, all v
  int tokens;
  int heads;
  const int32_t* positions;  // [tokens], each in [0, max positions)
  const int32_t* slots;      // [tokens], rows of `tables`
  BlockTables tables;
  Rope rope;

  Bf16* q;                          // [tokens, heads * head_size], dense, 16-byte aligned
  KvPages pages;                    // 16-byte aligned, block_stride a multiple of 16
  bool norms_across_heads = false;  // where `rope` has norms

  // Where ranks divide the heads of a norm across heads: each rank's sums of squares, [tokens,
  // ranks, 2], of LaunchHeadSquares, which are added in rank order; and how many values of q and of
  // k all ranks have.
  const float* rank_squares = nullptr;
  int ranks = 1;
  int all_q = 0, all_k = 0;
};

cudaError_t LaunchRopeAppend(const RopeAppendArgs& args, cudaStream_t stream);

// Sums the squares of each token's q and k over the rank's heads, biases included: squares[t] = (of
// q, of k). Heads of zeros change nothing. A token's bits depend on that token alone.
struct HeadSquaresArgs {
  Product qkv;        // as RopeAppendArgs has it
  const float* bias;  // as Rope has it
  int tokens;
  int q_width, k_width;  // of the rank, multiples of 8
  bool counts_k;         // false: another rank has the same k, and this one's sum is 0
  float* squares;        // [tokens, 2], 8-byte aligned
};

cudaError_t LaunchHeadSquares(const HeadSquaresArgs& args, cudaStream_t stream);

// Fills rotations[p][i] = magnitude * (cos, sin) of p * base^(-2i / dimensions) / factors[i],
// computed in double and rounded to float32. Run once, at load.
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
