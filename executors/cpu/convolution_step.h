// The operands of a layer's causal convolution, for the files of CpuOps that compute one.
#ifndef MILLRACE_EXECUTORS_CPU_CONVOLUTION_STEP_H_
#define MILLRACE_EXECUTORS_CPU_CONVOLUTION_STEP_H_

#include <cstdint>

#include "executors/cpu/activation.h"
#include "executors/cpu/cpu_ops.h"
#include "executors/decoder_ops.h"

namespace millrace::cpu {

// The operands that all tokens of a layer share. A layer's state begins with the convolution's
// inputs of the last tokens, [width - 1][channels] with the oldest first.
struct CpuOps::ConvolutionStep {
  int32_t layer;
  const ConvolutionSpec& spec;
  int channels;
  const CpuActivation& inputs;  // of each token
  int first_input = 0;          // where in its row they begin
  const CpuActivation& out;     // of each token, at the beginning of its row

  const float* Inputs(int token) const { return inputs.Floats(token) + first_input; }
};

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_CONVOLUTION_STEP_H_
