// Benchmark of a gated delta layer's kernels with the heads of Qwen3.5-27B (16 key heads, 48 value
// heads) and 35B-A3B (16, 32), for decode rows inside a block of the rule and at one's end, and for
// prompts. Bytes are those that a launch must read and write: of the rule, states and operands once
// each, a state's write where a block ends. Prompts also print the rule's time a token of a
// sequence and its rate of fused multiply-adds, of which an element of a state takes three a token,
// and one multiplication for eight.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "kernels/bench_util.h"
#include "kernels/recurrent/delta_inputs.h"
#include "kernels/recurrent/delta_rule.h"
#include "kernels/recurrent/gated_norm.h"
#include "kernels/recurrent/recurrent_bench.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

struct Model {
  const char* name;
  DeltaHeads heads;
};
constexpr Model kModels[] = {{"27B", {16, 48}}, {"35B-A3B", {16, 32}}};

struct Shape : BenchShape {
  bool EndsBlock() const { return start % kDeltaBlockTokens + tokens >= kDeltaBlockTokens; }
};
constexpr int kInside = 100, kLast = 103, kFirst = 104;
constexpr Shape kDecode[] = {{{1, 1, kInside}},   {{1, 1, kLast}},    {{16, 1, kInside}},
                             {{16, 1, kLast}},    {{64, 1, kInside}}, {{64, 1, kLast}},
                             {{256, 1, kInside}}, {{256, 1, kLast}}};
constexpr Shape kPrompts[] = {{{1, 4096, kFirst}}, {{1, 32768, kFirst}}, {{8, 1024, kFirst}}};

// One layer's memory for a step, with `inputs` sets of states and activations.
class Layer {
 public:
  Layer(const DeltaHeads& heads, const Shape& shape, int inputs)
      : heads_(heads),
        tokens_(int64_t{shape.rows} * shape.tokens),
        qkvz_stride_(heads.channels() + heads.value_width()),
        pair_floats_(tokens_ * heads.key_heads * 2 * kDeltaHeadSize),
        value_floats_(tokens_ * heads.value_width()),
        states_(int64_t{inputs} * shape.rows * StateFloats(heads)),
        keys_queries_(inputs * pair_floats_),
        values_(inputs * value_floats_),
        out_(inputs * value_floats_),
        gates_(inputs * tokens_ * heads.key_heads),
        qkvz_(inputs * tokens_ * qkvz_stride_),
        beta_alpha_(inputs * tokens_ * 2 * heads.value_heads),
        normed_(inputs * value_floats_),
        convolution_(kConvolutionTokens * heads.channels()),
        constants_(Constants()),
        rows_(shape, inputs),
        weights_(std::max(int64_t{DeltaWindows(rows_.view(0))} * heads.value_heads, int64_t{1})) {
    FillUniform(states_.get(), states_.size(), 1);
    FillUniform(keys_queries_.get(), keys_queries_.size(), 2, 0.15f);
    FillUniform(values_.get(), values_.size(), 3);
    FillUniform(reinterpret_cast<float*>(gates_.get()), gates_.bytes() / sizeof(float), 4);
    FillUniform(qkvz_.get(), qkvz_.size(), 5, 2);
    FillUniform(beta_alpha_.get(), beta_alpha_.size(), 6, 2);
    FillUniform(convolution_.get(), convolution_.size(), 7);
    FillUniform(out_.get(), out_.size(), 9);
  }

  cudaError_t Inputs(int input, cudaStream_t stream) const {
    return LaunchDeltaInputs(
        {.heads = heads_,
         .rows = rows_.view(input),
         .qkv = Qkvz(input, 0),
         .beta_alpha = {beta_alpha_.get() + input * tokens_ * 2 * heads_.value_heads,
                        int64_t{2} * heads_.value_heads, nullptr, nullptr},
         .convolution = convolution_.get(),
         .rates = constants_.get(),
         .time_bias = constants_.get() + kDeltaHeadSize,
         .state = State(),
         .out = Operands(input)},
        stream);
  }
  cudaError_t Rule(int input, std::optional<DeltaBlock> block, cudaStream_t stream) const {
    return LaunchDeltaRule({.heads = heads_,
                            .rows = rows_.view(input),
                            .operands = Operands(input),
                            .state = State(),
                            .out = out_.get() + input * value_floats_,
                            .weights = weights_.get(),
                            .block = block},
                           stream);
  }
  cudaError_t Norm(int input, cudaStream_t stream) const {
    return LaunchGatedNorm(
        {.x = out_.get() + input * value_floats_,
         .gate = Qkvz(input, heads_.channels()),
         .weight = constants_.get() + 2 * kDeltaHeadSize,
         .epsilon = 1e-6f,
         .tokens = static_cast<int>(tokens_),
         .heads = heads_.value_heads,
         .out = Bf16Rows(normed_.get() + input * value_floats_, heads_.value_width())},
        stream);
  }

 private:
  // Rates, which are negative so that states stay bounded, time biases and the norm's weights.
  static std::vector<float> Constants() {
    std::vector<float> constants = RandomNormal(3 * kDeltaHeadSize, 8);
    for (int i = 0; i < kDeltaHeadSize; ++i) constants[i] = -std::abs(constants[i]);
    return constants;
  }

  Product Qkvz(int input, int64_t column) const {
    return {qkvz_.get() + input * tokens_ * qkvz_stride_ + column, qkvz_stride_, nullptr, nullptr};
  }
  DeltaOperands Operands(int input) const {
    return {keys_queries_.get() + input * pair_floats_, values_.get() + input * value_floats_,
            gates_.get() + input * tokens_ * heads_.key_heads};
  }
  RecurrentState State() const { return {states_.get(), StateFloats(heads_)}; }

  DeltaHeads heads_;
  int64_t tokens_;
  int64_t qkvz_stride_, pair_floats_, value_floats_;
  DeviceBuffer<float> states_, keys_queries_, values_, out_;
  DeviceBuffer<DeltaGates> gates_;
  DeviceBuffer<Bf16> qkvz_, beta_alpha_, normed_;
  DeviceBuffer<float> convolution_, constants_;
  BenchRows rows_;
  DeviceBuffer<DeltaWeights> weights_;
};

void Run(Bench& bench, const Model& model, const Shape& shape) {
  const DeltaHeads& heads = model.heads;
  const double tokens = 1.0 * shape.rows * shape.tokens;
  const double operands =
      tokens * (heads.key_heads * (2.0 * kDeltaHeadSize * sizeof(float) + sizeof(DeltaGates)) +
                heads.value_width() * sizeof(float));
  const double values = tokens * heads.value_width() * sizeof(float);
  const double past = 2.0 * shape.rows * ConvolutionFloats(heads) * sizeof(float);
  const double products = tokens * (heads.channels() + 2.0 * heads.value_heads) * sizeof(Bf16) +
                          (kConvolutionTokens + 0.0) * heads.channels() * sizeof(float);
  const double inputs_bytes = past + products + operands;
  const double states = 1.0 * shape.rows * heads.value_width() * kDeltaHeadSize * sizeof(float);
  // A token that a block keeps; read by later ones of the block, and written once.
  const double kept = 1.0 * shape.rows * sizeof(float) *
                      (heads.key_heads * kDeltaHeadSize + heads.value_width() + heads.value_heads);
  const double rule_bytes = (shape.EndsBlock() ? 2 : 1) * states + operands + values +
                            (shape.start % kDeltaBlockTokens + (shape.EndsBlock() ? 0 : 1)) * kept;
  const double norm_bytes = values + 2 * tokens * heads.value_width() * sizeof(Bf16);
  const int inputs = RotatedInputs(shape.tokens == 1 ? rule_bytes : inputs_bytes);
  const Layer layer(heads, shape, inputs);
  const std::string name = std::string(model.name) + " " + shape.Name() +
                           (shape.tokens > 1    ? ""
                            : shape.EndsBlock() ? " last"
                                                : " inside");

  bench.Row("delta_inputs", name,
            bench.Microseconds(inputs,
                               [&](int i, cudaStream_t stream) { return layer.Inputs(i, stream); }),
            inputs_bytes);
  for (const DeltaBlock& block : kDeltaBlocks) {
    if (!IsBlockFor(block, heads)) continue;
    const double us = bench.Microseconds(
        inputs, [&](int i, cudaStream_t stream) { return layer.Rule(i, block, stream); });
    bench.Row(
        "delta_rule " + std::to_string(block.columns) + "/" + std::to_string(block.lane_columns),
        name, us, rule_bytes);
    if (shape.tokens == 1) continue;
    std::printf("  %s: %.1f ns a token of a sequence, %.1f T fused multiply-adds/s\n", name.c_str(),
                1e3 * us / shape.tokens,
                3 * tokens * heads.value_width() * kDeltaHeadSize / us / 1e6);
  }
  bench.Row(
      "gated_norm", name,
      bench.Microseconds(inputs, [&](int i, cudaStream_t stream) { return layer.Norm(i, stream); }),
      norm_bytes);
  bench.Row("all three", name,
            bench.Microseconds(inputs,
                               [&](int i, cudaStream_t stream) {
                                 CheckCuda(layer.Inputs(i, stream), "inputs");
                                 CheckCuda(layer.Rule(i, std::nullopt, stream), "rule");
                                 return layer.Norm(i, stream);
                               }),
            inputs_bytes + rule_bytes + norm_bytes);
}

}  // namespace
}  // namespace millrace::kernels

// kernels_recurrent_bench [decode | prompts]
int main(int argc, char** argv) {
  using namespace millrace::kernels;
  const std::string wanted = argc > 1 ? argv[1] : "";
  const bool decode = wanted != "prompts", prompts = wanted != "decode";
  Bench bench("Recurrent layers");
  for (const Model& model : kModels) {
    if (decode) {
      for (const Shape& shape : kDecode) Run(bench, model, shape);
    }
    if (prompts) {
      for (const Shape& shape : kPrompts) Run(bench, model, shape);
    }
  }
  BenchMamba2(bench, decode, prompts);
  BenchShortConvolution(bench, decode, prompts);
}
