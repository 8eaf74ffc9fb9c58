// The scan of a Mamba-2 layer (arXiv:2405.21060) as a recurrence, in prompts and in decode.
#ifndef MILLRACE_KERNELS_RECURRENT_MAMBA2_SCAN_H_
#define MILLRACE_KERNELS_RECURRENT_MAMBA2_SCAN_H_

#include <cuda_runtime_api.h>

#include "kernels/recurrent/mamba2_types.h"

namespace millrace::kernels {

// The values of a head that a CTA has, which there are kernels for. They give the same bits.
inline constexpr int kMamba2BlockValues[] = {32, 64};

constexpr bool IsBlockFor(int values, const Mamba2Heads& heads) {
  for (const int known : kMamba2BlockValues) {
    if (known == values) return heads.head_size % values == 0;
  }
  return false;
}

// Returns the values for a step: whole heads of 64 where they suffice for 128 of 132 SMs.
constexpr int DefaultMamba2Block(const Mamba2Heads& heads, int rows) {
  return IsBlockFor(64, heads) && heads.inner() / 64 * rows >= 128 ? 64 : 32;
}

// Computes for each row and head, token after token, with the head's state S, [head_size,
// state_size]:
//   S = decay * S + (step * x) b^T, out = S c + skip * x
//
// Exactness: the bits of outputs and states depend only on the row's own sequence. The order of
// arithmetic is one for prompts, decode and every cut: an element of S is
// fma(step * x, b, decay * S). The sum over a state is 16 chains of fused multiply-adds, chain l
// over elements 64 j + 4 l + i in the order of (j, i), of which chains l and l + 8 are added, then
// those sums at distances of 4, 2 and 1; out is fma(skip, x, sum). All else is multiplications,
// each rounded to nearest even. A NaN stays in its own sequence, and does not reach a token before
// it.
//
// Reads and writes the states of rows with tokens once, and reads their operands, of which L2
// serves b and c to the CTAs of a group. Launches one kernel.
struct Mamba2ScanArgs {
  Mamba2Heads heads;
  RecurrentRows rows;
  Mamba2Operands operands;
  const float* skip;     // [heads]: D, constant while steps run
  RecurrentState state;  // all but its convolution part is read and written
  float* out;            // [max_tokens, heads, head_size], 16-byte aligned; may be operands.x
  int block_values = 32;
};

// Returns cudaErrorInvalidValue, and launches nothing, if `args` violates the constraints above.
cudaError_t LaunchMamba2Scan(const Mamba2ScanArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_MAMBA2_SCAN_H_
