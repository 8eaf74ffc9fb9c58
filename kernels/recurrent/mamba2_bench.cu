// Benchmark of a Mamba-2 layer's kernels with the heads of Nemotron-3-Nano (64 of 64, 8 groups) and
// Granite-4-H-Small (128 of 64, one group), for decode rows and for prompts. Bytes are those that a
// launch must read and write: states and operands once each. Prompts also print the scan's time a
// token of a sequence and its rate of arithmetic, of which an element of a state takes two fused
// multiply-adds and one multiplication a token.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/bench_util.h"
#include "kernels/recurrent/mamba2_inputs.h"
#include "kernels/recurrent/mamba2_norm.h"
#include "kernels/recurrent/mamba2_scan.h"
#include "kernels/recurrent/recurrent_bench.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

struct Model {
  const char* name;
  Mamba2Heads heads;
};
constexpr Model kModels[] = {{"Nano", {64, 64, 8, 128}}, {"H-Small", {128, 64, 1, 128}}};
constexpr BenchShape kDecode[] = {{1, 1, 100}, {16, 1, 100}, {64, 1, 100}, {256, 1, 100}};
constexpr BenchShape kPrompts[] = {{1, 4096, 100}, {1, 32768, 100}, {8, 1024, 100}};

// One layer's memory for a step, with `inputs` sets of states and activations. A token's product is
// z, the convolution's input, and dt.
class Layer {
 public:
  Layer(const Model& model, const BenchShape& shape, int inputs)
      : heads_(model.heads),
        tokens_(shape.all_tokens()),
        stride_(int64_t{heads_.inner()} + heads_.channels() + heads_.heads),
        rows_(shape, inputs),
        states_(inputs * shape.rows * Mamba2Floats(heads_)),
        products_(inputs * tokens_ * stride_),
        x_(inputs * tokens_ * heads_.inner()),
        bc_(inputs * tokens_ * 2 * heads_.state_width()),
        gates_(inputs * tokens_ * heads_.heads),
        normed_(inputs * tokens_ * heads_.inner()),
        convolution_(kMamba2Width * heads_.channels()),
        constants_(heads_.channels()),
        rates_(Rates(heads_.heads)) {
    FillUniform(states_.get(), states_.size(), 1);
    FillUniform(products_.get(), products_.size(), 2);
    FillUniform(x_.get(), x_.size(), 3);
    FillUniform(bc_.get(), bc_.size(), 4);
    FillUniform(reinterpret_cast<float*>(gates_.get()), 2 * gates_.size(), 5);
    FillUniform(convolution_.get(), convolution_.size(), 6);
    FillUniform(constants_.get(), constants_.size(), 7);
  }

  cudaError_t Inputs(int input, cudaStream_t stream) const {
    return LaunchMamba2Inputs({.heads = heads_,
                               .rows = rows_.view(input),
                               .xbc = Products(input, heads_.inner()),
                               .dt = Products(input, heads_.inner() + heads_.channels()),
                               .convolution = convolution_.get(),
                               .bias = constants_.get(),
                               .rates = rates_.get(),
                               .time_bias = constants_.get(),
                               .state = State(),
                               .out = Operands(input)},
                              stream);
  }
  cudaError_t Scan(int input, int block_values, cudaStream_t stream) const {
    return LaunchMamba2Scan({.heads = heads_,
                             .rows = rows_.view(input),
                             .operands = Operands(input),
                             .skip = constants_.get(),
                             .state = State(),
                             .out = Operands(input).x,
                             .block_values = block_values},
                            stream);
  }
  cudaError_t Norm(int input, cudaStream_t stream) const {
    return LaunchMamba2Norm(
        {.outputs = {Operands(input).x, Products(input, 0), static_cast<int>(tokens_),
                     heads_.inner(), heads_.inner() / heads_.groups},
         .weight = constants_.get(),
         .epsilon = 1e-5f,
         .out = Bf16Rows(normed_.get() + input * tokens_ * heads_.inner(), heads_.inner())},
        stream);
  }

 private:
  // Negative, so that states stay bounded.
  static std::vector<float> Rates(int heads) {
    std::vector<float> rates = RandomNormal(heads, 8);
    for (float& rate : rates) rate = -std::abs(rate);
    return rates;
  }
  Product Products(int input, int64_t column) const {
    return {products_.get() + input * tokens_ * stride_ + column, stride_, nullptr, nullptr};
  }
  Mamba2Operands Operands(int input) const {
    return {x_.get() + input * tokens_ * heads_.inner(),
            bc_.get() + input * tokens_ * 2 * heads_.state_width(),
            gates_.get() + input * tokens_ * heads_.heads};
  }
  RecurrentState State() const { return {states_.get(), Mamba2Floats(heads_)}; }

  Mamba2Heads heads_;
  int64_t tokens_, stride_;
  BenchRows rows_;
  DeviceBuffer<float> states_;
  DeviceBuffer<Bf16> products_;
  DeviceBuffer<float> x_, bc_;
  DeviceBuffer<Mamba2Gates> gates_;
  DeviceBuffer<Bf16> normed_;
  DeviceBuffer<float> convolution_, constants_, rates_;
};

void Run(Bench& bench, const Model& model, const BenchShape& shape) {
  const Mamba2Heads& heads = model.heads;
  const double tokens = static_cast<double>(shape.all_tokens());
  const double operands =
      tokens * (heads.channels() * sizeof(float) + heads.heads * sizeof(Mamba2Gates));
  const double values = tokens * heads.inner() * sizeof(float);
  const double inputs_bytes = 2.0 * shape.rows * Mamba2HeadsAt(heads) * sizeof(float) +
                              tokens * (heads.channels() + heads.heads) * sizeof(Bf16) +
                              (kMamba2Width + 1.0) * heads.channels() * sizeof(float) + operands;
  const double elements = 1.0 * heads.inner() * heads.state_size;
  const double scan_bytes = 2.0 * shape.rows * elements * sizeof(float) + operands + values;
  const double norm_bytes = values + 2 * tokens * heads.inner() * sizeof(Bf16);
  const int inputs = RotatedInputs(shape.tokens == 1 ? scan_bytes : inputs_bytes);
  const Layer layer(model, shape, inputs);
  const std::string name = std::string(model.name) + " " + shape.Name();

  bench.Row("mamba2_inputs", name,
            bench.Microseconds(inputs,
                               [&](int i, cudaStream_t stream) { return layer.Inputs(i, stream); }),
            inputs_bytes);
  for (const int block : kMamba2BlockValues) {
    const double us = bench.Microseconds(
        inputs, [&](int i, cudaStream_t stream) { return layer.Scan(i, block, stream); });
    bench.Row("mamba2_scan " + std::to_string(block), name, us, scan_bytes);
    if (shape.tokens == 1) continue;
    std::printf("  %s: %.1f ns a token of a sequence, %.1f T operations/s\n", name.c_str(),
                1e3 * us / shape.tokens, 3 * tokens * elements / us / 1e6);
  }
  bench.Row(
      "mamba2_norm", name,
      bench.Microseconds(inputs, [&](int i, cudaStream_t stream) { return layer.Norm(i, stream); }),
      norm_bytes);
  const int block = DefaultMamba2Block(heads, shape.rows);
  bench.Row("all three", name,
            bench.Microseconds(inputs,
                               [&](int i, cudaStream_t stream) {
                                 CheckCuda(layer.Inputs(i, stream), "inputs");
                                 CheckCuda(layer.Scan(i, block, stream), "scan");
                                 return layer.Norm(i, stream);
                               }),
            inputs_bytes + scan_bytes + norm_bytes);
}

}  // namespace

void BenchMamba2(Bench& bench, bool decode, bool prompts) {
  for (const Model& model : kModels) {
    for (const BenchShape& shape : kDecode) {
      if (decode) Run(bench, model, shape);
    }
    for (const BenchShape& shape : kPrompts) {
      if (prompts) Run(bench, model, shape);
    }
  }
}

}  // namespace millrace::kernels
