// The op of gated delta rules.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/strings.h"
#include "executors/cpu/convolution_step.h"
#include "executors/cpu/cpu_ops.h"
#include "executors/cpu/softplus.h"
#include "executors/models/model_state.h"

namespace millrace::cpu {
namespace {

// Added to the sum of squares before a query's or a key's length is its root.
constexpr float kLengthEpsilon = 1e-6f;

float Sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

millrace::GatedDelta ShapeOf(const GatedDeltaSpec& spec) {
  return {.key_heads = spec.key_heads,
          .value_heads = spec.value_heads,
          .key_size = spec.key_size,
          .value_size = spec.value_size};
}

}  // namespace

// The operands that all tokens of a layer share.
struct CpuOps::DeltaStep {
  const GatedDeltaSpec& spec;
  const ConvolutionStep convolution;
  const CpuActivation& factors;  // beta and alpha, and then beta and decay
  const CpuActivation& mixed;    // q, k and v behind the convolution, and the output in place of v
  std::vector<float> query_scales;  // [key_size]: the norms' weights
  std::vector<float> key_scales;

  int keys() const { return spec.key_heads * spec.key_size; }
  int values_begin() const { return 2 * keys(); }
};

void CpuOps::PrepareDelta(const DeltaStep& step, int token) const {
  const GatedDeltaSpec& spec = step.spec;
  Convolve(step.convolution, token);
  float* const mixed = step.mixed.Floats(token);
  for (int head = 0; head < 2 * spec.key_heads; ++head) {
    float* const values = mixed + head * spec.key_size;
    const auto& scales = head < spec.key_heads ? step.query_scales : step.key_scales;
    kernels_.norm(values, scales.data(), /*size=*/1, spec.key_size, kLengthEpsilon, Form::kFloat,
                  values);
  }
  float* const betas = step.factors.Floats(token);
  float* const alphas = betas + spec.value_heads;
  const std::vector<float>& a = weights_.Vector(spec.a);
  const std::vector<float>& time_biases = weights_.Vector(spec.time_bias);
  for (int head = 0; head < spec.value_heads; ++head) {
    betas[head] = Sigmoid(betas[head]);
    const float step_size = Softplus(alphas[head] + time_biases[head]);
    alphas[head] = std::exp((spec.converted ? a[head] : -std::exp(a[head])) * step_size);
  }
}

void CpuOps::RunDelta(const DeltaStep& step, int head, float* state, int first, int count) const {
  const GatedDeltaSpec& spec = step.spec;
  const int key_head = spec.KeyHead(head);
  float* const mixed = step.mixed.Floats(first);
  float* const values = mixed + step.values_begin() + head * spec.value_size;
  const float* const betas = step.factors.Floats(first);
  kernels_.delta_rule({.state = state,
                       .key_size = spec.key_size,
                       .value_size = spec.value_size,
                       .tokens = count,
                       .queries = mixed + key_head * spec.key_size,
                       .keys = mixed + step.keys() + key_head * spec.key_size,
                       .values = values,
                       .stride = step.mixed.row_floats(),
                       .decays = betas + spec.value_heads + head,
                       .betas = betas + head,
                       .gate_stride = step.factors.row_floats(),
                       .out = values,
                       .out_stride = step.mixed.row_floats()});
}

void CpuOps::AdvanceDelta(int32_t layer, const GatedDeltaSpec& spec, const CpuActivation& products,
                          const CpuActivation& factors, const CpuActivation& mixed) {
  const millrace::GatedDelta shape = ShapeOf(spec);
  const DeltaStep step{.spec = spec,
                       .convolution = {.layer = layer,
                                       .spec = spec.convolution,
                                       .channels = shape.channels(),
                                       .inputs = products,
                                       .out = mixed},
                       .factors = factors,
                       .mixed = mixed,
                       .query_scales = std::vector<float>(
                           spec.key_size, 1 / std::sqrt(static_cast<float>(spec.key_size))),
                       .key_scales = std::vector<float>(spec.key_size, 1.0f)};
  pool_.ParallelFor(mixed.rows(), [&](int token, int) { PrepareDelta(step, token); });
  AdvanceStates(step.convolution, GatedDeltaState(shape),
                [&](int head, float* state, int first, int count) {
                  RunDelta(step, head, state, first, count);
                });
}

// The layer's inputs of a draft's tokens: what the convolution reads, and beta and alpha.
void CpuOps::KeepDraftedDelta(int32_t layer, const GatedDeltaSpec& spec,
                              const CpuActivation& products, const CpuActivation& factors) {
  const int channels = ShapeOf(spec).channels();
  const int num_factors = 2 * spec.value_heads;
  KeepDrafted(
      channels + num_factors,
      [&](int token, float* kept) {
        std::copy_n(products.Floats(token), channels, kept);
        std::copy_n(factors.Floats(token), num_factors, kept + channels);
      },
      [this, layer, channels, num_factors, &spec](const CpuActivation& inputs) {
        const CpuActivation factors = Take(Form::kFloat, num_factors);
        for (int token = 0; token < inputs.rows(); ++token) {
          std::copy_n(inputs.Floats(token) + channels, num_factors, factors.Floats(token));
        }
        const CpuActivation mixed = Take(Form::kFloat, channels);
        AdvanceDelta(layer, spec, inputs, factors, mixed);
      });
}

LinearInput CpuOps::GatedDelta(int32_t layer, const GatedDeltaSpec& spec,
                               const GatedDeltaWeights& weights, const LinearInput& x,
                               Consumers consumers) {
  if (spec.key_size % kTileRows != 0 || spec.value_size % kStateColumns != 0) {
    Fail(absl::UnimplementedError(StrCat("layer ", layer, "'s gated delta rule has keys of ",
                                         spec.key_size, " and values of ", spec.value_size,
                                         " elements; allowed on the CPU: multiples of ", kTileRows,
                                         " and of ", kStateColumns)));
  }
  const millrace::GatedDelta shape = ShapeOf(spec);
  const CpuActivation products = Product(weights.qkvz, x);
  const CpuActivation factors = Product(weights.beta_alpha, x);
  const CpuActivation mixed = Take(Form::kFloat, shape.channels());
  const GatedDeltaState state(shape);
  ClearStates(layer, state.inputs + state.heads * state.head);
  KeepDraftedDelta(layer, spec, products, factors);
  AdvanceDelta(layer, spec, products, factors, mixed);
  const int width = spec.value_heads * spec.value_size;
  auto input = TakeInput(consumers, width);
  pool_.ParallelFor(mixed.rows(), [&](int token, int) {
    float* const out = mixed.Floats(token) + shape.channels() - width;
    for (int head = 0; head < spec.value_heads; ++head) {
      NormRow(spec.norm, out + head * spec.value_size, Form::kFloat, out + head * spec.value_size);
    }
    const float* const z = products.Floats(token) + shape.channels();
    kernels_.sigmoid_gate(z, width, /*silu=*/true, out);
    for (const CpuActivation& form : input->forms) {
      kernels_.store(out, width, form.form(), form.Row(token));
    }
  });
  return input;
}

}  // namespace millrace::cpu
