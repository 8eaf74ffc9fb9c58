// The gated delta rule (Gated DeltaNet, arXiv:2412.06464), token by token, in prompts too.
#ifndef MILLRACE_KERNELS_RECURRENT_DELTA_RULE_H_
#define MILLRACE_KERNELS_RECURRENT_DELTA_RULE_H_

#include <cuda_runtime_api.h>

#include "kernels/recurrent/delta_types.h"

namespace millrace::kernels {

// How a layer is cut into CTAs: each has `columns` value columns, the same ones of every value head
// of a key head, and runs through the tokens of a row. Each lane of its warps keeps 16 keys of
// `lane_columns` of them in registers.
struct DeltaBlock {
  int columns;
  int lane_columns;
};

// The blocks that there are kernels for. They give the same bits. Two columns a lane are for groups
// of up to kMaxPairedGroup value heads: more do not fit into registers.
inline constexpr DeltaBlock kDeltaBlocks[] = {{8, 1}, {16, 1}, {32, 1}, {32, 2}};
inline constexpr int kMaxPairedGroup = 2;

constexpr bool IsBlockFor(const DeltaBlock& block, const DeltaHeads& heads) {
  if (block.lane_columns > 1 && heads.group() > kMaxPairedGroup) return false;
  for (const DeltaBlock& known : kDeltaBlocks) {
    if (known.columns == block.columns && known.lane_columns == block.lane_columns) return true;
  }
  return false;
}

// Returns the block for a step. On 132 SMs and one row, 16 key heads take 128 CTAs with blocks of
// 16 columns, whatever the size of their groups.
constexpr DeltaBlock DefaultDeltaBlock() { return {16, 1}; }

// For each row, token and value head, with the state S, [keys, values], and all products from the S
// before the token:
//   delta = beta * (v - decay * S^T k)
//   out = decay * S^T q + (q k) * delta
//   S = decay * S + k delta^T
//
// Exactness: the bits of outputs and states depend only on the row's own sequence. The order of
// arithmetic is one for prompts, decode and every block: a sum over keys is eight chains of fused
// multiply-adds, chain l over keys 32 j + 4 l + i in the order of (j, i), and then ((0 + 4) + (2 +
// 6)) + ((1 + 5) + (3 + 7)). It uses multiplications, additions and fused multiply-adds alone, each
// rounded to nearest even: delta = beta * fma(-decay, S^T k, v), out = fma(decay, S^T q, (q k) *
// delta), S = fma(k, delta, decay * S). A NaN stays in its own sequence.
//
// Reads the operands of the rows' tokens, which L2 serves to the CTAs of a key head, and reads and
// writes the states of rows with tokens once.
struct DeltaRuleArgs {
  DeltaHeads heads;
  RecurrentRows rows;
  DeltaOperands operands;
  RecurrentState state;  // its heads' part is read and written
  float* out;            // [max_tokens, value_heads, 128], 16-byte aligned; may be operands.values
  DeltaBlock block = DefaultDeltaBlock();
};

// Returns cudaErrorInvalidValue, and launches nothing, if `args` violates the constraints above.
cudaError_t LaunchDeltaRule(const DeltaRuleArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_DELTA_RULE_H_
