// The op of Mamba-2 mixers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/strings.h"
#include "executors/cpu/convolution_step.h"
#include "executors/cpu/cpu_ops.h"
#include "executors/cpu/softplus.h"
#include "executors/models/model_state.h"

namespace millrace::cpu {
namespace {

millrace::Mamba2 ShapeOf(const Mamba2Spec& spec) {
  return {.heads = spec.heads,
          .head_size = spec.head_size,
          .groups = spec.groups,
          .state_size = spec.state_size,
          .width = spec.convolution.width};
}

}  // namespace

// The operands that all tokens of a layer share.
struct CpuOps::Mamba2Step {
  const Mamba2Spec& spec;
  const ConvolutionStep convolution;
  const CpuActivation& factors;  // the heads' decays, and then their steps
  const CpuActivation& mixed;    // x, b and c behind the convolution, and the output in place of x

  int inner() const { return spec.heads * spec.head_size; }
  int channels() const { return inner() + 2 * spec.groups * spec.state_size; }
};

void CpuOps::PrepareMamba2(const Mamba2Step& step, int token) const {
  const Mamba2Spec& spec = step.spec;
  Convolve(step.convolution, token);
  const float* const inputs = step.convolution.Inputs(token) + step.channels();
  float* const decays = step.factors.Floats(token);
  float* const steps = decays + spec.heads;
  const std::vector<float>& a = weights_.Vector(spec.a);
  const std::vector<float>& biases = weights_.Vector(spec.time_bias);
  for (int head = 0; head < spec.heads; ++head) {
    steps[head] =
        std::clamp(Softplus(inputs[head] + biases[head]), spec.least_step, spec.largest_step);
    decays[head] = std::exp((spec.converted ? a[head] : -std::exp(a[head])) * steps[head]);
  }
}

void CpuOps::RunMamba2(const Mamba2Step& step, int head, float* state, int first, int count) const {
  const Mamba2Spec& spec = step.spec;
  const int group = head / (spec.heads / spec.groups);
  float* const mixed = step.mixed.Floats(first);
  float* const x = mixed + head * spec.head_size;
  const float* const b = mixed + step.inner() + group * spec.state_size;
  const float* const decays = step.factors.Floats(first) + head;
  kernels_.state_space({.state = state,
                        .state_size = spec.state_size,
                        .head_size = spec.head_size,
                        .tokens = count,
                        .b = b,
                        .c = b + spec.groups * spec.state_size,
                        .x = x,
                        .stride = step.mixed.row_floats(),
                        .decays = decays,
                        .steps = decays + spec.heads,
                        .factor_stride = step.factors.row_floats(),
                        .skip = weights_.Vector(spec.d)[head],
                        .out = x,
                        .out_stride = step.mixed.row_floats()});
}

void CpuOps::AdvanceMamba2(int32_t layer, const Mamba2Spec& spec, const CpuActivation& products,
                           int first_input, const CpuActivation& mixed) {
  const millrace::Mamba2 shape = ShapeOf(spec);
  const CpuActivation factors = Take(Form::kFloat, int64_t{2} * spec.heads);
  const Mamba2Step step{.spec = spec,
                        .convolution = {.layer = layer,
                                        .spec = spec.convolution,
                                        .channels = shape.channels(),
                                        .inputs = products,
                                        .first_input = first_input,
                                        .out = mixed},
                        .factors = factors,
                        .mixed = mixed};
  pool_.ParallelFor(mixed.rows(), [&](int token, int) { PrepareMamba2(step, token); });
  AdvanceStates(step.convolution, Mamba2State(shape),
                [&](int head, float* state, int first, int count) {
                  RunMamba2(step, head, state, first, count);
                });
}

// The mixer's inputs of a draft's tokens: x, b, c and dt.
void CpuOps::KeepDraftedMamba2(int32_t layer, const Mamba2Spec& spec,
                               const CpuActivation& products) {
  const millrace::Mamba2 shape = ShapeOf(spec);
  const int floats = shape.channels() + spec.heads;
  KeepDrafted(
      floats,
      [&](int token, float* kept) {
        std::copy_n(products.Floats(token) + shape.inner(), floats, kept);
      },
      [this, layer, &spec](const CpuActivation& inputs) {
        const CpuActivation mixed = Take(Form::kFloat, ShapeOf(spec).channels());
        AdvanceMamba2(layer, spec, inputs, /*first_input=*/0, mixed);
      });
}

// Each rank adds the squares of its own heads to those of their groups.
void CpuOps::NormMamba2AcrossRanks(const Mamba2Spec& spec, const CpuActivation& mixed) {
  if (collective_ == nullptr) return;  // a dry run
  const NormWeight& norm = weights_.Norm(spec.norm);
  const int width = spec.heads * spec.head_size / spec.groups;  // of this rank's part of a group
  const size_t groups = spec.all_groups;
  squares_.assign(groups * mixed.rows(), 0.0f);
  // Ranks without heads of their own, which are filled up with zeros, are behind the last group.
  const auto square_of = [&](int token, int group) -> float& {
    return squares_[token * groups + std::min(spec.first_group + group, spec.all_groups - 1)];
  };
  for (int token = 0; token < mixed.rows(); ++token) {
    for (int group = 0; group < spec.groups; ++group) {
      const float* const x = mixed.Floats(token) + group * width;
      square_of(token, group) += std::inner_product(x, x + width, x, 0.0f);
    }
  }
  collective_->AllReduce(absl::MakeSpan(squares_));
  const float size = static_cast<float>(norm.size) / static_cast<float>(groups);
  for (int token = 0; token < mixed.rows(); ++token) {
    for (int group = 0; group < spec.groups; ++group) {
      float* const x = mixed.Floats(token) + group * width;
      const float factor = 1 / std::sqrt(square_of(token, group) / size + norm.epsilon);
      const float* const scale = norm.scale.data() + group * width;
      for (int i = 0; i < width; ++i) x[i] *= factor * scale[i];
    }
  }
}

LinearInput CpuOps::Mamba2(int32_t layer, const Mamba2Spec& spec, LinearId projection,
                           const LinearInput& x, Consumers consumers) {
  if (spec.head_size % kTileRows != 0 || spec.state_size % kTileRows != 0) {
    Fail(absl::UnimplementedError(
        StrCat("layer ", layer, "'s Mamba-2 mixer has heads of ", spec.head_size, " and states of ",
               spec.state_size, " elements; allowed on the CPU: multiples of ", kTileRows)));
  }
  const millrace::Mamba2 shape = ShapeOf(spec);
  const int inner = shape.inner();
  const CpuActivation products = Product(projection, x);
  const CpuActivation mixed = Take(Form::kFloat, shape.channels());
  const Mamba2State state(shape);
  ClearStates(layer, state.inputs + state.heads * state.head);
  KeepDraftedMamba2(layer, spec, products);
  AdvanceMamba2(layer, spec, products, /*first_input=*/inner, mixed);
  auto input = TakeInput(consumers, inner);
  const NormWeight& norm = weights_.Norm(spec.norm);
  const int group = inner / spec.groups;
  pool_.ParallelFor(mixed.rows(), [&](int token, int) {
    float* const y = mixed.Floats(token);
    kernels_.sigmoid_gate(products.Floats(token), inner, /*silu=*/true, y);
    if (spec.shares_groups) return;
    for (int i = 0; i < inner; i += group) {
      kernels_.norm(y + i, norm.scale.data() + i, group, group, norm.epsilon, Form::kFloat, y + i);
    }
  });
  if (spec.shares_groups) NormMamba2AcrossRanks(spec, mixed);
  pool_.ParallelFor(mixed.rows(), [&](int token, int) {
    for (const CpuActivation& form : input->forms) {
      kernels_.store(mixed.Floats(token), inner, form.form(), form.Row(token));
    }
  });
  return input;
}

}  // namespace millrace::cpu
