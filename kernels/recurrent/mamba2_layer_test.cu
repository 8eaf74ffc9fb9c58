// The kernels of a Mamba-2 layer one after the other, as a step launches them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/activation_test_util.h"
#include "kernels/graph_test_util.h"
#include "kernels/launch.cuh"
#include "kernels/recurrent/mamba2_inputs.h"
#include "kernels/recurrent/mamba2_norm.h"
#include "kernels/recurrent/mamba2_scan.h"
#include "kernels/recurrent/mamba2_test_util.h"
#include "kernels/recurrent/rows_test_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr Mamba2Heads kHeads = {8, 64, 2, 128};
constexpr int kTokens = 140;
constexpr int kOwnSlot = 1;

// A layer's weights, and the product of its linear of one sequence: z, the convolution's input, and
// dt.
struct Layer {
  Layer()
      : zxbcdt(kTokens, kHeads.inner() + kHeads.channels() + 16, false, 1),
        convolution(RandomNormal(kMamba2Width * kHeads.channels(), 2)),
        bias(RandomNormal(kHeads.channels(), 3)),
        rates(std::vector<float>(kHeads.heads, -0.05f)),
        time_bias(RandomNormal(kHeads.heads, 4)),
        skip(RandomNormal(kHeads.heads, 5)),
        norm(RandomNormal(kHeads.inner(), 6)) {}

  TestProduct zxbcdt;
  DeviceBuffer<float> convolution, bias, rates, time_bias, skip, norm;
};

// Memory of a step, and its launches. Its tokens are consecutive ones of the layer's product.
struct Step {
  explicit Step(const std::vector<TestRow>& of)
      : rows(of, /*spare=*/0),
        tokens(rows.tokens()),
        operands(kHeads, tokens),
        out(tokens, kHeads.inner(), Scaling::kTokenGroup) {}

  void Launch(const Layer& layer, int first, const TestSlots& state, cudaStream_t stream) const {
    const auto from = [&](int64_t column) {
      Product product = layer.zxbcdt.view;
      product.data += first * product.stride + column;
      return product;
    };
    CheckCuda(LaunchMamba2Inputs({.heads = kHeads,
                                  .rows = rows.view(),
                                  .xbc = from(kHeads.inner()),
                                  .dt = from(kHeads.inner() + kHeads.channels()),
                                  .convolution = layer.convolution.get(),
                                  .bias = layer.bias.get(),
                                  .rates = layer.rates.get(),
                                  .time_bias = layer.time_bias.get(),
                                  .state = state.view(),
                                  .out = operands.view()},
                                 stream),
              "inputs");
    CheckCuda(LaunchMamba2Scan({.heads = kHeads,
                                .rows = rows.view(),
                                .operands = operands.view(),
                                .skip = layer.skip.get(),
                                .state = state.view(),
                                .out = operands.x.get()},
                               stream),
              "scan");
    CheckCuda(LaunchMamba2Norm({.outputs = {operands.x.get(), from(0), tokens, kHeads.inner(),
                                            kHeads.inner() / kHeads.groups},
                                .weight = layer.norm.get(),
                                .epsilon = 1e-5f,
                                .out = out.view},
                               stream),
              "norm");
  }

  TestRows rows;
  int tokens;
  TestMamba2Operands operands;
  TestActivation out;
};

// Computes the sequence in one row and returns each token's output.
std::vector<std::vector<uint8_t>> Whole(const Layer& layer, const TestSlots& state) {
  const Step whole({{kTokens, 0, kOwnSlot}});
  whole.Launch(layer, 0, state, nullptr);
  std::vector<std::vector<uint8_t>> expected;
  for (int t = 0; t < kTokens; ++t) expected.push_back(whole.out.RowBytes(t));
  return expected;
}

std::vector<uint32_t> OwnState(const TestSlots& state) {
  return Bits(state.memory.Download(), kOwnSlot * state.stride, Mamba2Floats(kHeads));
}

// Prompts cut anywhere, then decode to the end, beside another sequence.
TEST(Mamba2Layer, CutsDecodeAndNeighboursChangeNoBit) {
  const Layer layer;
  TestSlots state(Mamba2Floats(kHeads), 3);
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
TEST(Mamba2Layer, AGraphGivesTheBitsOfLaunches) {
  const Layer layer;
  TestSlots state(Mamba2Floats(kHeads), 3);
  state.memory.Poison();
  const auto expected = Whole(layer, state);
  const std::vector<uint32_t> left = OwnState(state);
  Step step({{kTokens, 0, kOwnSlot}});
  cudaStream_t stream;
  CheckCuda(cudaStreamCreate(&stream), "stream");
  CapturedGraph graph(stream, [&](cudaStream_t capturing) {
    for (int i = 0; i < 3; ++i) step.Launch(layer, 0, state, capturing);
  });
  // Only the scan of prompts does not start early.
  if (KernelsAwait()) {
    EXPECT_EQ(graph.CountEdges().programmatic, graph.CountEdges().all - 3);
  }
  for (int replay = 0; replay < 20; ++replay) {
    state.memory.Poison();
    step.operands.x.Poison();
    step.operands.bc.Poison();
    graph.Replay(stream);
    CheckCuda(cudaStreamSynchronize(stream), "replay");
    ASSERT_EQ(OwnState(state), left) << "replay " << replay;
  }
  for (int t = 0; t < kTokens; ++t) ASSERT_EQ(step.out.RowBytes(t), expected[t]) << "token " << t;
  CheckCuda(cudaStreamDestroy(stream), "stream");
}

}  // namespace
}  // namespace millrace::kernels
