// Causal convolutions: those of all recurrent layers, and the op of short convolutions.
#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "base/strings.h"
#include "executors/cpu/convolution_step.h"
#include "executors/cpu/cpu_ops.h"
#include "executors/models/model_state.h"

namespace millrace::cpu {

void CpuOps::ClearStates(int32_t layer, int64_t floats) {
  pool_.ParallelFor(NumRows(), [&](int row, int) {
    const CpuStepInput::Row& begins = step_->rows[row];
    if (step_->positions[begins.first_token] > 0) return;
    std::fill_n(kv_.State(begins.slot, layer), floats, 0.0f);
  });
}

void CpuOps::Convolve(const ConvolutionStep& step, int token) const {
  const CpuStepInput::Row& row = step_->rows[step_->row_of[token]];
  const int before = step.spec.width - 1;
  const float* inputs[kMaxConvolutionWidth];
  for (int i = 0; i <= before; ++i) {
    // Counted from the row's first token; what lies before it is in the state.
    const int at = token - row.first_token + i - before;
    inputs[i] = at >= 0 ? step.Inputs(row.first_token + at)
                        : kv_.State(row.slot, step.layer) + (before + at) * step.channels;
  }
  const std::optional<VectorId>& bias = step.spec.bias;
  kernels_.convolve({.inputs = inputs,
                     .weights = weights_.Vector(step.spec.weights).data(),
                     .bias = bias.has_value() ? weights_.Vector(*bias).data() : nullptr,
                     .width = step.spec.width,
                     .channels = step.channels,
                     .silu = step.spec.silu,
                     .out = step.out.Floats(token)});
}

void CpuOps::KeepInputs(const ConvolutionStep& step, int row) const {
  const CpuStepInput::Row& tokens = step_->rows[row];
  const int before = step.spec.width - 1;
  float* const kept = kv_.State(tokens.slot, step.layer);
  for (int i = 0; i < before; ++i) {
    const int at = tokens.num_tokens + i - before;
    const float* const from =
        at >= 0 ? step.Inputs(tokens.first_token + at) : kept + (before + at) * step.channels;
    std::copy_n(from, step.channels, kept + i * step.channels);
  }
}

LinearInput CpuOps::ShortConvolution(int32_t layer, const ShortConvolutionSpec& spec,
                                     LinearId projection, const LinearInput& in,
                                     Consumers consumers) {
  const int channels = spec.channels;
  if (channels % kTileRows != 0) {
    Fail(absl::UnimplementedError(StrCat("layer ", layer, "'s short convolution has ", channels,
                                         " channels; allowed on the CPU: a multiple of ",
                                         kTileRows)));
  }
  const CpuActivation products = Product(projection, in);  // b, c and x of each token
  const CpuActivation out = Take(Form::kFloat, channels);
  const ConvolutionStep step{.layer = layer,
                             .spec = spec.convolution,
                             .channels = channels,
                             .inputs = products,
                             .out = out};
  ClearStates(layer, int64_t{spec.convolution.width - 1} * channels);
  pool_.ParallelFor(out.rows(), [&](int token, int) {
    float* const b = products.Floats(token);
    const float* const x = b + 2 * channels;
    for (int i = 0; i < channels; ++i) b[i] *= x[i];
  });
  auto input = TakeInput(consumers, channels);
  pool_.ParallelFor(out.rows(), [&](int token, int) {
    Convolve(step, token);
    const float* const c = products.Floats(token) + channels;
    float* const y = out.Floats(token);
    for (int i = 0; i < channels; ++i) y[i] *= c[i];
    for (const CpuActivation& form : input->forms) {
      kernels_.store(y, channels, form.form(), form.Row(token));
    }
  });
  pool_.ParallelFor(NumRows(), [&](int row, int) { KeepInputs(step, row); });
  return input;
}

}  // namespace millrace::cpu
