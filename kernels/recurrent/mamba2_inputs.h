// The step between a Mamba-2 layer's first linear and its scan: the causal convolution with its
// state, SiLU, and the gates.
#ifndef MILLRACE_KERNELS_RECURRENT_MAMBA2_INPUTS_H_
#define MILLRACE_KERNELS_RECURRENT_MAMBA2_INPUTS_H_

#include <cuda_runtime_api.h>

#include <limits>

#include "kernels/recurrent/mamba2_types.h"
#include "kernels/types.h"

namespace millrace::kernels {

// For each token, in float32:
//   [x, b, c] = silu(sum over i of convolution[i] * the input of the token 3 - i before it + bias)
//   step = min(max(softplus(dt + time_bias), min_step), max_step), decay = exp(-A * step)
// Inputs before position 0 are zeros; others before the row are the state's, where the row leaves
// its last three.
//
// A token's bits depend on its own input and those of the three tokens before it alone: neither on
// the batch nor on where its prompt was cut. An input in the state is the float32 value of the
// product. Reads each input once or, in rows of more than three tokens, up to 1.4 times, of which
// L2 serves all but the first.
struct Mamba2InputsArgs {
  Mamba2Heads heads;
  RecurrentRows rows;
  Product xbc;  // [max_tokens, channels]; rows may go on with columns that are not read
  Product dt;   // [max_tokens, heads]; as above

  // Constant while steps run.
  const float* convolution;  // [4][channels], the oldest token's first; 16-byte aligned
  const float* bias;         // [channels], 16-byte aligned; null for none
  const float* rates;        // [heads]: -A, or log(A) if `log_rates`
  const float* time_bias;    // [heads]
  float min_step = 0;
  float max_step = std::numeric_limits<float>::infinity();
  bool log_rates = false;  // as folders have them; files of llama.cpp's converter have -A

  RecurrentState state;  // its convolution part is read and written
  Mamba2Operands out;    // [max_tokens, ...]
};

// Returns cudaErrorInvalidValue, and launches nothing, if `args` violates the constraints above.
cudaError_t LaunchMamba2Inputs(const Mamba2InputsArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_MAMBA2_INPUTS_H_
