// The kernels of a layer one after the other, as a step launches them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/activation_test_util.h"
#include "kernels/graph_test_util.h"
#include "kernels/launch.cuh"
#include "kernels/recurrent/delta_inputs.h"
#include "kernels/recurrent/delta_rule.h"
#include "kernels/recurrent/delta_test_util.h"
#include "kernels/recurrent/gated_norm.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr DeltaHeads kHeads{2, 6};
constexpr int kTokens = 140;
constexpr int kOwnSlot = 1;

// A layer's weights, and the products of one sequence.
struct Layer {
  Layer()
      : qkvz(kTokens, static_cast<int>(kHeads.channels() + kHeads.value_width()), false, 1),
        beta_alpha(kTokens, 16, false, 2),
        convolution(RandomNormal(kConvolutionTokens * kHeads.channels(), 3)),
        rates(std::vector<float>(kHeads.value_heads, -0.05f)),
        time_bias(RandomNormal(kHeads.value_heads, 4)),
        norm(RandomNormal(kDeltaHeadSize, 5)) {}

  TestProduct qkvz, beta_alpha;
  DeviceBuffer<float> convolution, rates, time_bias, norm;
};

// Memory of a step, and its launches. Its tokens are consecutive ones of the layer's products.
struct Step {
  explicit Step(const std::vector<TestRow>& of)
      : rows(of),
        tokens(rows.tokens()),
        operands(kHeads, tokens),
        weights(int64_t{kTokens} * kHeads.value_heads),
        out(tokens, static_cast<int>(kHeads.value_width()), Scaling::kTokenGroup) {}

  void Launch(const Layer& layer, int first, const TestState& state, cudaStream_t stream) const {
    const auto from = [&](Product product, int64_t column) {
      product.data += first * product.stride + column;
      return product;
    };
    CheckCuda(LaunchDeltaInputs({.heads = kHeads,
                                 .rows = rows.view(),
                                 .qkv = from(layer.qkvz.view, 0),
                                 .beta_alpha = from(layer.beta_alpha.view, 0),
                                 .convolution = layer.convolution.get(),
                                 .rates = layer.rates.get(),
                                 .time_bias = layer.time_bias.get(),
                                 .state = state.view(),
                                 .out = operands.view()},
                                stream),
              "inputs");
    CheckCuda(LaunchDeltaRule({.heads = kHeads,
                               .rows = rows.view(),
                               .operands = operands.view(),
                               .state = state.view(),
                               .out = operands.values.get(),
                               .weights = weights.get()},
                              stream),
              "rule");
    CheckCuda(LaunchGatedNorm({.x = operands.values.get(),
                               .gate = from(layer.qkvz.view, kHeads.channels()),
                               .weight = layer.norm.get(),
                               .epsilon = 1e-6f,
                               .tokens = tokens,
                               .heads = kHeads.value_heads,
                               .out = out.view},
                              stream),
              "norm");
  }

  TestRows rows;
  int tokens;
  TestOperands operands;
  DeviceBuffer<DeltaWeights> weights;
  TestActivation out;
};

// Computes the sequence in one row and returns each token's output.
std::vector<std::vector<uint8_t>> Whole(const Layer& layer, const TestState& state) {
  const Step whole({{kTokens, 0, kOwnSlot}});
  whole.Launch(layer, 0, state, nullptr);
  std::vector<std::vector<uint8_t>> expected;
  for (int t = 0; t < kTokens; ++t) expected.push_back(whole.out.RowBytes(t));
  return expected;
}

// Returns what the sequence's slot means at its end.
std::vector<uint32_t> OwnState(const TestState& state) {
  const std::vector<float> slots = state.memory.Download();
  return MeantBits(kHeads, &slots[kOwnSlot * state.stride], kTokens);
}

// Prompts cut anywhere, then decode to the end, beside another sequence.
TEST(DeltaLayer, CutsDecodeAndNeighboursChangeNoBit) {
  const Layer layer;
  TestState state(kHeads, 3);
  state.memory.Poison();
  const auto expected = Whole(layer, state);
  const std::vector<uint32_t> left = OwnState(state);
  const std::vector<std::vector<int>> all_cuts = {
      {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {64, 1, 63}, {65, 8, 16}, {7, 9, 33, 2}, {127}, {}};
  for (const std::vector<int>& cuts : all_cuts) {
    SCOPED_TRACE(std::to_string(cuts.size()) + " cuts");
    state.memory.Poison();
    int first = 0;
    for (size_t step = 0; first < kTokens; ++step) {
      const int tokens = std::min(step < cuts.size() ? cuts[step] : 1, kTokens - first);
      // The other sequence begins anew with each step and takes the tokens before these.
      const int before = std::min(first, 3);
      const Step own({{before, 0, 2}, {tokens, first, kOwnSlot}});
      own.Launch(layer, first - before, state, nullptr);
      for (int t = 0; t < tokens; ++t) {
        ASSERT_EQ(own.out.RowBytes(before + t), expected[first + t]) << "token " << first + t;
      }
      first += tokens;
    }
    EXPECT_EQ(OwnState(state), left);
  }
}

// Each kernel waits for what the one before it wrote, also where they start early.
TEST(DeltaLayer, AGraphGivesTheBitsOfLaunches) {
  const Layer layer;
  TestState state(kHeads, 3);
  state.memory.Poison();
  const auto expected = Whole(layer, state);
  const std::vector<uint32_t> left = OwnState(state);
  Step step({{kTokens, 0, kOwnSlot}});
  cudaStream_t stream;
  CheckCuda(cudaStreamCreate(&stream), "stream");
  CapturedGraph graph(stream, [&](cudaStream_t capturing) {
    for (int i = 0; i < 3; ++i) step.Launch(layer, 0, state, capturing);
  });
  // Only the rule of prompts does not start early.
  if (KernelsAwait()) {
    EXPECT_EQ(graph.CountEdges().programmatic, graph.CountEdges().all - 3);
  }
  for (int replay = 0; replay < 20; ++replay) {
    state.memory.Poison();
    step.operands.keys_queries.Poison();
    step.operands.values.Poison();
    graph.Replay(stream);
    CheckCuda(cudaStreamSynchronize(stream), "replay");
    ASSERT_EQ(OwnState(state), left) << "replay " << replay;
  }
  for (int t = 0; t < kTokens; ++t) ASSERT_EQ(step.out.RowBytes(t), expected[t]) << "token " << t;
  CheckCuda(cudaStreamDestroy(stream), "stream");
}

}  // namespace
}  // namespace millrace::kernels
