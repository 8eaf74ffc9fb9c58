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
    const int at = tokens.num_tokens - tokens.num_draft + i - before;
    const float* const from =
        at >= 0 ? step.Inputs(tokens.first_token + at) : kept + (before + at) * step.channels;
    std::copy_n(from, step.channels, kept + i * step.channels);
  }
}

void CpuOps::AdvanceStates(
    const ConvolutionStep& convolution, const HeadStates& states,
    const std::function<void(int head, float* state, int first, int count)>& run) {
  const auto num_heads = static_cast<int>(states.heads);
  pool_.ParallelFor(NumRows() * num_heads, [&](int task, int thread) {
    const int row = task / num_heads;
    const int head = task % num_heads;
    const CpuStepInput::Row& tokens = step_->rows[row];
    float* const state =
        kv_.State(tokens.slot, convolution.layer) + states.inputs + head * states.head;
    const int known = tokens.num_tokens - tokens.num_draft;
    run(head, state, tokens.first_token, known);
    if (tokens.num_draft > 0) {
      std::vector<float>& guessed = scratch_[thread].state;
      guessed.assign(state, state + states.head);
      run(head, guessed.data(), tokens.first_token + known, tokens.num_draft);
    }
    if (head == 0) KeepInputs(convolution, row);
  });
}

int CpuOps::NumDrafted() const {
  int count = 0;
  for (const CpuStepInput::Row& row : step_->rows) count += row.num_draft;
  return count;
}

void CpuOps::KeepDrafted(size_t floats, const std::function<void(int token, float* out)>& copy,
                         std::function<void(const CpuActivation& inputs)> advance) {
  drafted_floats_ += floats;
  const int count = NumDrafted();
  if (count == 0) return;
  if (drafted_.size() == num_drafted_layers_) drafted_.emplace_back();
  DraftedLayer& layer = drafted_[num_drafted_layers_++];
  layer.inputs.resize(count * floats);
  layer.floats = floats;
  layer.advance = std::move(advance);
  float* out = layer.inputs.data();
  for (const CpuStepInput::Row& row : step_->rows) {
    const int end = row.first_token + row.num_tokens;
    for (int token = end - row.num_draft; token < end; ++token, out += floats) copy(token, out);
  }
}

void CpuOps::AcceptDrafts(absl::Span<const int32_t> accepted) {
  accepted_.rows.clear();
  accepted_.row_of.clear();
  std::vector<int> kept;  // of the tokens of drafts, those that are right
  int drafted = 0;
  for (size_t i = 0; i < step_->rows.size(); ++i) {
    const CpuStepInput::Row& row = step_->rows[i];
    if (accepted[i] > 0) {
      accepted_.rows.push_back({.first_token = static_cast<int>(kept.size()),
                                .num_tokens = accepted[i],
                                .block_tables = {},
                                .slot = row.slot});
    }
    for (int n = 0; n < accepted[i]; ++n) {
      accepted_.row_of.push_back(static_cast<int>(accepted_.rows.size()) - 1);
      kept.push_back(drafted + n);
    }
    drafted += row.num_draft;
  }
  if (kept.empty()) return;
  step_ = &accepted_;
  step_memory_.rows = static_cast<int>(kept.size());
  step_memory_.arena.SetCapacity(memory_.activations.bytes() / kept.size());
  for (size_t i = 0; i < num_drafted_layers_; ++i) {
    const DraftedLayer& layer = drafted_[i];
    const CpuActivation inputs = Take(Form::kFloat, static_cast<int64_t>(layer.floats));
    for (size_t n = 0; n < kept.size(); ++n) {
      std::copy_n(&layer.inputs[kept[n] * layer.floats], layer.floats,
                  inputs.Floats(static_cast<int>(n)));
    }
    layer.advance(inputs);
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
  KeepDrafted(
      channels,
      [&](int token, float* kept) { std::copy_n(products.Floats(token), channels, kept); },
      [this, layer, &spec](const CpuActivation& inputs) {
        const ConvolutionStep accepted{.layer = layer,
                                       .spec = spec.convolution,
                                       .channels = spec.channels,
                                       .inputs = inputs,
                                       .out = inputs};
        pool_.ParallelFor(NumRows(), [&](int row, int) { KeepInputs(accepted, row); });
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
