// Description of rope and its companions: biases are added (Qwen2), q and k are normed (Qwen3) and
// then rotated by their token's position (Su et al., arXiv:2104.09864). All arithmetic is float32,
// rounded once at the end.
#ifndef MILLRACE_KERNELS_ATTENTION_ROPE_H_
#define MILLRACE_KERNELS_ATTENTION_ROPE_H_

#include <vector_types.h>

#include <cstdint>

#include "kernels/arguments.h"

namespace millrace::kernels {

// The head's columns from `dimensions` on are not rotated.
struct Rope {
  const float2* rotations;  // [max positions, dimensions / 2], 16-byte aligned: LaunchFillRotations
  int dimensions;           // a multiple of 8, at most the head's size; 0 disables rotation
  bool interleaved;         // pairs (2i, 2i + 1); else (i, i + dimensions / 2)

  // A value for each of the product's QkvWidth columns; 16-byte aligned, or null.
  const float* bias = nullptr;

  // Norm weights: x / sqrt(mean(x^2) + epsilon) * norm over each head of q and k, before the
  // rotation. Both are set, or both are null.
  const float* q_norm;  // [head size], 16-byte aligned
  const float* k_norm;
  float norm_epsilon;

  // The product has, behind each head of q, as many columns of the head's gate (Qwen3-Next,
  // arXiv:2505.06708), which nothing here reads: LaunchGateHeads does.
  bool gates = false;
};

// Returns the first column of a head in the qkv linear's product; `head` counts over all q, all k
// and all v, of which `heads` are q's.
__host__ __device__ constexpr int64_t HeadColumn(bool gates, int head, int heads, int head_size) {
  const int before = gates ? (head < heads ? head : heads) : 0;  // gates
  return (int64_t{head} + before) * head_size;
}

// Returns the columns of the qkv linear's product.
constexpr int64_t QkvWidth(bool gates, int heads, int kv_heads, int head_size) {
  return HeadColumn(gates, heads + 2 * kv_heads, heads, head_size);
}

inline bool IsValid(const Rope& rope, int head_size) {
  const bool rotates = rope.dimensions > 0;
  const bool norms = rope.q_norm != nullptr;
  return rope.dimensions >= 0 && rope.dimensions % 8 == 0 && rope.dimensions <= head_size &&
         (!rotates || rope.rotations != nullptr) && IsAligned16(rope.rotations) &&
         IsAligned16(rope.bias) && norms == (rope.k_norm != nullptr) && IsAligned16(rope.q_norm) &&
         IsAligned16(rope.k_norm) && (!norms || rope.norm_epsilon >= 0);
}

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ATTENTION_ROPE_H_
