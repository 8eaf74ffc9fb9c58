// Benchmark of the gated short convolution with the channels of LFM2-1.2B and LFM2-8B-A1B, for
// decode rows and for prompts. Bytes are those that a launch must read and write: products, states
// and outputs once each.
#include <cstdint>
#include <string>

#include "kernels/bench_util.h"
#include "kernels/recurrent/recurrent_bench.h"
#include "kernels/recurrent/short_convolution.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr int kChannels = 2048, kWidth = 3;
constexpr BenchShape kDecode[] = {{1, 1, 100}, {16, 1, 100}, {64, 1, 100}, {256, 1, 100}};
constexpr BenchShape kPrompts[] = {{1, 4096, 100}, {1, 32768, 100}, {8, 1024, 100}};

void Run(Bench& bench, const BenchShape& shape, Scaling scaling) {
  const int64_t tokens = shape.all_tokens(), state = ShortConvolutionFloats(kWidth, kChannels);
  const int element = scaling == Scaling::kNone ? 2 : 1;
  const double bytes = 1.0 * tokens * kChannels * (3 * sizeof(Bf16) + element) +
                       2.0 * shape.rows * state * sizeof(float) +
                       1.0 * kWidth * kChannels * sizeof(float);
  const int inputs = RotatedInputs(bytes);
  const BenchRows rows(shape, inputs);
  const DeviceBuffer<Bf16> bcx(inputs * tokens * 3 * kChannels);
  const DeviceBuffer<float> states(inputs * shape.rows * state), weights(kWidth * kChannels);
  const DeviceBuffer<uint8_t> out(inputs * tokens * kChannels * element);
  const DeviceBuffer<float> scales(tokens);
  FillUniform(bcx.get(), bcx.size(), 1);
  FillUniform(states.get(), states.size(), 2);
  FillUniform(weights.get(), weights.size(), 3);
  const double us = bench.Microseconds(inputs, [&](int input, cudaStream_t stream) {
    uint8_t* const to = out.get() + input * tokens * kChannels * element;
    return LaunchShortConvolution({.rows = rows.view(input),
                                   .channels = kChannels,
                                   .width = kWidth,
                                   .bcx = {bcx.get() + input * tokens * 3 * kChannels,
                                           int64_t{3} * kChannels, nullptr, nullptr},
                                   .bcx_bias = nullptr,
                                   .weights = weights.get(),
                                   .bias = nullptr,
                                   .state = {states.get(), state},
                                   .out = {to, element == 2 ? Type::kBf16 : Type::kFp8, scaling,
                                           kChannels, element == 2 ? nullptr : scales.get()}},
                                  stream);
  });
  bench.Row(scaling == Scaling::kNone ? "short_convolution" : "short_convolution, FP8 by token",
            shape.Name(), us, bytes);
}

}  // namespace

void BenchShortConvolution(Bench& bench, bool decode, bool prompts) {
  for (const Scaling scaling : {Scaling::kNone, Scaling::kToken}) {
    for (const BenchShape& shape : kDecode) {
      if (decode) Run(bench, shape, scaling);
    }
    for (const BenchShape& shape : kPrompts) {
      if (prompts) Run(bench, shape, scaling);
    }
  }
}

}  // namespace millrace::kernels
