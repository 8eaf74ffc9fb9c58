// The step between a gated delta layer's linears and its rule: the causal convolution with its
// state, SiLU, the norms of queries and keys, and the gates.
#ifndef MILLRACE_KERNELS_RECURRENT_DELTA_INPUTS_H_
#define MILLRACE_KERNELS_RECURRENT_DELTA_INPUTS_H_

#include <cuda_runtime_api.h>

#include "kernels/recurrent/delta_types.h"
#include "kernels/types.h"

namespace millrace::kernels {

// For each token, in float32:
//   [q, k, v] = silu(sum over i of convolution[i] * the input of the token 3 - i before it)
//   q = q / sqrt(|q|^2 + length_epsilon) / sqrt(128), k = k / sqrt(|k|^2 + length_epsilon)
//   decay = exp(-A * softplus(alpha + time_bias)), beta = 1 / (1 + exp(-beta))
// Inputs before position 0 are zeros; others before the row are the state's, where the row leaves
// its last three.
//
// A token's bits depend on its own input and those of the three tokens before it alone: neither on
// the batch nor on where its prompt was cut. An input in the state is the float32 value of the
// product. Reads each input once or, in rows of more than three tokens, up to 1.4 times.
struct DeltaInputsArgs {
  DeltaHeads heads;
  RecurrentRows rows;
  Product qkv;         // [max_tokens, channels]; rows may go on with columns that are not read
  Product beta_alpha;  // [max_tokens, 2 * value_heads]: beta of each value head, then alpha

  // Constant while steps run.
  const float* convolution;  // [4][channels], the oldest token's first; 16-byte aligned
  const float* rates;        // [value_heads]: -A, or log(A) if `log_rates`
  const float* time_bias;    // [value_heads]

  RecurrentState state;  // its convolution part is read and written
  DeltaOperands out;     // [max_tokens, ...]
  float length_epsilon = 1e-6f;
  bool log_rates = false;  // as folders have them; files of llama.cpp's converter have -A
};

// Returns cudaErrorInvalidValue, and launches nothing, if `args` violates the constraints above.
cudaError_t LaunchDeltaInputs(const DeltaInputsArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_DELTA_INPUTS_H_
