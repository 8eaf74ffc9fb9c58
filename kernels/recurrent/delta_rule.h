// The gated delta rule (Gated DeltaNet, arXiv:2412.06464) by blocks of eight tokens, in prompts and
// in decode.
#ifndef MILLRACE_KERNELS_RECURRENT_DELTA_RULE_H_
#define MILLRACE_KERNELS_RECURRENT_DELTA_RULE_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

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

// Returns the block for a step. With one row 16 key heads take 128 CTAs of 16 columns, about as
// many as an H200 has SMs. Where there are CTAs enough, two columns a lane halve what a CTA reads
// of shared memory for each element (docs/experiments/recurrent.md).
constexpr DeltaBlock DefaultDeltaBlock(const DeltaHeads& heads, const RecurrentRows& rows) {
  constexpr int kEnoughCtas = 256;
  constexpr DeltaBlock kPaired = {32, 2};
  const bool pairs =
      heads.group() <= kMaxPairedGroup &&
      int64_t{rows.rows} * heads.key_heads * (kDeltaHeadSize / kPaired.columns) >= kEnoughCtas;
  return pairs ? kPaired : DeltaBlock{16, 1};
}

// Computes, for each row and value head, the gated delta rule:
//   S = decay * S, delta = beta * (v - S^T k), S = S + k delta^T, out = S^T q
// by blocks of tokens at multiples of eight from the sequence's start. With the state S, [keys,
// values], before the block, token t of it and the factors of DeltaWeights:
//   delta_t = beta_t * (v_t - start_t * S^T k_t) + sum over j < t of delta(t, j) delta_j
//   out_t = start_t * S^T q_t + sum over j <= t of output(t, j) delta_j
// and when all eight are there S = start_7 * S + sum over j of k_j (fold_j delta_j)^T. Until then
// the state keeps S, and the keys, deltas and decays of the block's tokens (StateParts).
//
// Exactness: the bits of outputs and states depend only on the row's own sequence. The order of
// arithmetic is one for prompts, decode and every cut: a sum over keys (of S and a key, S and a
// query, or two keys) is eight chains of fused multiply-adds, chain l over keys 32 j + 4 l + i in
// the order of (j, i), and then ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)). Sums over tokens are
// chains of fused multiply-adds in ascending order of j, on beta_t * fma(-start_t, S^T k_t, v_t),
// on start_t * S^T q_t and on start_7 * S. The product of a token's own key and query is the
// operands'. All else is multiplications, each rounded to nearest even. A NaN stays in its own
// sequence, and does not reach a token before it.
//
// Reads the operands of the rows' tokens, which L2 serves to the CTAs of a key head, and the states
// of rows with tokens once; writes a state only where a row ends a block, and the keys, deltas and
// decays of a block that has begun. Launches one kernel if no row has more than one token; else one
// more that keeps keys and decays, and from eight tokens a row on another before, for the factors.
struct DeltaRuleArgs {
  DeltaHeads heads;
  RecurrentRows rows;
  DeltaOperands operands;
  RecurrentState state;  // all but its convolution part is read and written
  float* out;            // [max_tokens, value_heads, 128], 16-byte aligned; may be operands.values
  // Workspace, 16-byte aligned: [DeltaWindows(rows), value_heads]; not used where that is 0.
  DeltaWeights* weights;
  std::optional<DeltaBlock> block = std::nullopt;  // nothing: DefaultDeltaBlock
};

// Returns the windows of eight consecutive tokens of a step in which whole blocks may begin; in
// each at most one does.
constexpr int DeltaWindows(const RecurrentRows& rows) {
  if (rows.max_row_tokens < kDeltaBlockTokens) return 0;
  return (rows.max_tokens + kDeltaBlockTokens - 1) / kDeltaBlockTokens;
}

// Returns cudaErrorInvalidValue, and launches nothing, if `args` violates the constraints above.
cudaError_t LaunchDeltaRule(const DeltaRuleArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_DELTA_RULE_H_
