// The gated short convolution of LFM2 (arXiv:2511.23404), between its layer's two linears.
#ifndef MILLRACE_KERNELS_RECURRENT_SHORT_CONVOLUTION_H_
#define MILLRACE_KERNELS_RECURRENT_SHORT_CONVOLUTION_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/recurrent/recurrent_rows.h"
#include "kernels/types.h"

namespace millrace::kernels {

inline constexpr int kMaxShortConvolutionWidth = 8;
inline constexpr int kMaxShortConvolutionChannels = 4096;

// Returns the floats of a slot: the inputs b * x of the last width - 1 tokens, [width -
// 1][channels] with the oldest first.
constexpr int64_t ShortConvolutionFloats(int width, int channels) {
  return int64_t{width - 1} * channels;
}

// For each token and channel, in float32:
//   out = c * (sum over i of weights[i] * (b * x of the token width - 1 - i before it) + bias)
// rounded once to BF16 or to FP8 with any scaling (kernels/fp8.cuh has the rule). Inputs before
// position 0 are zeros; others before the row are the state's, where the row leaves its last ones.
//
// The sum is one chain of fused multiply-adds, the oldest token's product first, to which the bias
// is added; all else is additions of biases and multiplications, each rounded to nearest even. A
// token's bits depend on its own input and those of the width - 1 tokens before it alone: neither
// on the batch nor on where its prompt was cut.
//
// Reads each of c once and each of b and x once or, in rows of at least `width` tokens, up to
// 1 + (width - 1) / 8 times, of which L2 serves all but the first. `out.data` and, for kToken and
// kTokenGroup, `out.scales` are written for the tokens of rows, and for no other.
struct ShortConvolutionArgs {
  RecurrentRows rows;
  int channels;  // a multiple of 8, at most kMaxShortConvolutionChannels
  int width;     // 1 to kMaxShortConvolutionWidth
  Product bcx;   // [max_tokens, 3 * channels]: all of b, then c, then x

  // Constant while steps run, 16-byte aligned.
  const float* bcx_bias;  // [3 * channels], which is first added to bcx; or null
  const float* weights;   // [width][channels], the oldest token's first
  const float* bias;      // [channels], or null

  RecurrentState state;  // ShortConvolutionFloats, read and written; not used if width is 1
  Activation out;        // [max_tokens, channels]; columns up to the stride are set to zero
};

// Returns cudaErrorInvalidValue, and launches nothing, if `args` violates the constraints above.
cudaError_t LaunchShortConvolution(const ShortConvolutionArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_RECURRENT_SHORT_CONVOLUTION_H_
