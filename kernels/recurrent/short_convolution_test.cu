#include "kernels/recurrent/short_convolution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/activation_test_util.h"
#include "kernels/graph_test_util.h"
#include "kernels/recurrent/rows_test_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

struct Size {
  int channels;
  int width;
  bool bias;  // of the products and of the convolution
};

std::string Name(const Size& size) {
  return std::to_string(size.channels) + " channels, width " + std::to_string(size.width) +
         (size.bias ? ", bias" : "");
}

// A layer's weights, and products of `tokens` tokens. Rows of the products go on with columns that
// are not read.
struct Layer {
  Layer(const Size& size, int tokens, bool scaled)
      : size(size),
        bcx(tokens, Width(), scaled, 1),
        bcx_bias(RandomNormal(3 * size.channels, 6)),
        weights(RandomNormal(size.width * size.channels, 2)),
        bias(RandomNormal(size.channels, 3)),
        host_bcx_bias(bcx_bias.Download()) {}

  int Width() const { return 3 * size.channels + 8; }
  int64_t StateFloats() const { return ShortConvolutionFloats(size.width, size.channels); }

  // The operands of tokens [first, first + rows' tokens) of the products.
  ShortConvolutionArgs Args(const TestRows& rows, int first, const TestSlots& state,
                            const Activation& out) const {
    Product from = bcx.view;
    from.data += first * from.stride;
    if (from.token_scales != nullptr) from.token_scales += first;
    return {.rows = rows.view(),
            .channels = size.channels,
            .width = size.width,
            .bcx = from,
            .bcx_bias = size.bias ? bcx_bias.get() : nullptr,
            .weights = weights.get(),
            .bias = size.bias ? bias.get() : nullptr,
            .state = state.view(),
            .out = out};
  }

  // b, c or x.
  double Value(int token, int part, int channel) const {
    const int at = part * size.channels + channel;
    return bcx.values[int64_t{token} * Width() + at] + (size.bias ? host_bcx_bias[at] : 0);
  }
  // The input of the convolution.
  double Input(int token, int channel) const {
    return Value(token, 0, channel) * Value(token, 2, channel);
  }

  Size size;
  TestProduct bcx;
  DeviceBuffer<float> bcx_bias, weights, bias;
  std::vector<float> host_bcx_bias;
};

// The input of a row's token `at`, which counts from its first one; those before it are the
// state's.
double InputOf(const Layer& layer, const std::vector<float>& state, int64_t slot_stride,
               const TestRow& row, int first, int at, int channel) {
  if (at >= 0) return layer.Input(first + at, channel);
  if (row.start == 0) return 0;
  const int past = layer.size.width - 1;
  return state[row.slot * slot_stride + int64_t{past + at} * layer.size.channels + channel];
}

std::vector<double> Reference(const Layer& layer, const std::vector<TestRow>& rows,
                              const std::vector<float>& state, int64_t slot_stride) {
  const auto [channels, width, has_bias] = layer.size;
  const std::vector<float> weights = layer.weights.Download(), bias = layer.bias.Download();
  std::vector<double> out;
  int first = 0;
  for (const TestRow& row : rows) {
    for (int t = 0; t < row.tokens; ++t) {
      for (int c = 0; c < channels; ++c) {
        double sum = has_bias ? bias[c] : 0;
        for (int i = 0; i < width; ++i) {
          sum += weights[i * channels + c] *
                 InputOf(layer, state, slot_stride, row, first, t + i - (width - 1), c);
        }
        out.push_back(sum * layer.Value(first + t, 1, c));
      }
    }
    first += row.tokens;
  }
  return out;
}

// Returns what the rows leave in the slots.
std::vector<double> StateReference(const Layer& layer, const std::vector<TestRow>& rows,
                                   const std::vector<float>& state, int64_t slot_stride) {
  std::vector<double> left(state.begin(), state.end());
  int first = 0;
  for (const TestRow& row : rows) {
    const int past = layer.size.width - 1;
    for (int i = 0; i < past && row.tokens > 0; ++i) {
      for (int c = 0; c < layer.size.channels; ++c) {
        left[row.slot * slot_stride + int64_t{i} * layer.size.channels + c] =
            InputOf(layer, state, slot_stride, row, first, row.tokens - past + i, c);
      }
    }
    first += row.tokens;
  }
  return left;
}

// Rows shorter and longer than a convolution and than a run; slots out of order.
const std::vector<TestRow> kRows = {{1, 5, 4},  {2, 0, 0},  {0, 3, 1},  {3, 11, 8}, {4, 0, 2},
                                    {5, 64, 9}, {13, 1, 3}, {40, 0, 7}, {1, 0, 6},  {9, 2, 10}};
constexpr int kSlots = 12;  // slots 5 and 11 have no row

TEST(ShortConvolution, MatchesDoubleAtAllWidthsAndScalings) {
  constexpr Size kSizes[] = {{8, 1, true},     {72, 2, false},  {264, 3, false}, {1024, 3, true},
                             {2048, 3, false}, {520, 4, true},  {136, 5, false}, {256, 6, true},
                             {200, 7, false},  {4096, 8, true}, {1032, 8, false}};
  for (const Size& size : kSizes) {
    for (const Scaling scaling : kAllScalings) {
      for (const bool scaled : {false, true}) {
        SCOPED_TRACE(Name(size) + " " + ScalingName(scaling) + (scaled ? " scaled" : ""));
        const TestRows rows(kRows, /*spare=*/0);
        const Layer layer(size, rows.tokens(), scaled);
        TestSlots state(layer.StateFloats(), kSlots);
        state.FillRandom(4);
        const std::vector<float> before = state.memory.Download();
        const TestActivation out(rows.tokens(), size.channels, scaling);
        ASSERT_EQ(LaunchShortConvolution(layer.Args(rows, 0, state, out.view), nullptr),
                  cudaSuccess);
        ExpectActivation(out, Reference(layer, kRows, before, state.stride));
        if (HasFatalFailure()) return;
        const std::vector<double> left = StateReference(layer, kRows, before, state.stride);
        const std::vector<float> after = state.memory.Download();
        for (size_t i = 0; i < after.size(); ++i) {
          ASSERT_NEAR(after[i], left[i], 5e-7 * std::abs(left[i]) + 2e-6) << "state " << i;
        }
        EXPECT_TRUE(state.memory.GuardsIntact());
      }
    }
  }
}

// A graph's arrays have memory for more tokens and rows than there are.
TEST(ShortConvolution, WritesNothingOfTokensThatNoRowHas) {
  constexpr Size kSize = {256, 3, true};
  const TestRows rows({{1, 3, 1}, {0, 0, 0}, {1, 0, 2}, {0, 7, 0}});
  const int most = rows.view().max_tokens;
  const Layer layer(kSize, most, false);
  TestSlots state(layer.StateFloats(), 3);
  state.FillRandom(4);
  const std::vector<float> before = state.memory.Download();
  for (const Scaling scaling : kAllScalings) {
    const TestActivation out(most, kSize.channels, scaling);
    ASSERT_EQ(LaunchShortConvolution(layer.Args(rows, 0, state, out.view), nullptr), cudaSuccess);
    for (int token = rows.tokens(); token < most; ++token) {
      const std::vector<uint8_t> bytes = out.RowBytes(token);
      EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 0xff), static_cast<int64_t>(bytes.size()));
    }
  }
  // Slot 0 belongs to rows without tokens.
  const std::vector<float> after = state.memory.Download();
  EXPECT_EQ(Bits(after, 0, state.stride), Bits(before, 0, state.stride));
}

// A sequence between others, cut anywhere, gives the bits of one row.
TEST(ShortConvolution, CutsAndNeighboursChangeNoBit) {
  constexpr int kTokens = 70;
  for (const Size& size : {Size{264, 3, false}, Size{2048, 3, true}, Size{136, 8, true}}) {
    for (const Scaling scaling : kAllScalings) {
      const Layer layer(size, kTokens, true);
      TestSlots state(layer.StateFloats(), 3);
      state.memory.Poison();
      const TestRows rows({{kTokens, 0, 1}}, /*spare=*/0);
      const TestActivation whole(kTokens, size.channels, scaling);
      ASSERT_EQ(LaunchShortConvolution(layer.Args(rows, 0, state, whole.view), nullptr),
                cudaSuccess);
      std::vector<std::vector<uint8_t>> expected;
      for (int t = 0; t < kTokens; ++t) expected.push_back(whole.RowBytes(t));
      const std::vector<float> left = state.memory.Download();
      for (const int cut : {1, 2, 3, 4, 7, 8, 9, 35, 69}) {
        SCOPED_TRACE(Name(size) + " " + ScalingName(scaling) + ", steps of " + std::to_string(cut));
        state.memory.Poison();
        for (int first = 0; first < kTokens; first += cut) {
          const int tokens = std::min(cut, kTokens - first);
          // Two neighbours take the tokens before it: one of them one, the other the rest.
          const int before = std::min(first, 5);
          const TestRows step(
              {{std::min(before, 1), 0, 0}, {std::max(before - 1, 0), 9, 2}, {tokens, first, 1}},
              /*spare=*/0);
          const TestActivation part(step.tokens(), size.channels, scaling);
          ASSERT_EQ(
              LaunchShortConvolution(layer.Args(step, first - before, state, part.view), nullptr),
              cudaSuccess);
          for (int t = 0; t < tokens; ++t) {
            ASSERT_EQ(part.RowBytes(before + t), expected[first + t]) << "token " << first + t;
          }
        }
        EXPECT_EQ(Bits(state.memory.Download(), state.stride, layer.StateFloats()),
                  Bits(left, state.stride, layer.StateFloats()));
      }
    }
  }
}

TEST(ShortConvolution, AGraphGivesTheBitsOfLaunches) {
  constexpr Size kSize = {2048, 3, false};
  const TestRows rows(kRows, /*spare=*/0);
  const Layer layer(kSize, rows.tokens(), false);
  TestSlots state(layer.StateFloats(), kSlots);
  state.FillRandom(5);
  const std::vector<float> before = state.memory.Download();
  TestActivation out(rows.tokens(), kSize.channels, Scaling::kToken);
  const ShortConvolutionArgs args = layer.Args(rows, 0, state, out.view);
  ASSERT_EQ(LaunchShortConvolution(args, nullptr), cudaSuccess);
  const std::vector<uint8_t> expected = out.data.Download();
  const std::vector<float> left = state.memory.Download();
  cudaStream_t stream;
  CheckCuda(cudaStreamCreate(&stream), "stream");
  CapturedGraph graph(stream, [&](cudaStream_t capturing) {
    CheckCuda(LaunchShortConvolution(args, capturing), "capture");
  });
  for (int replay = 0; replay < 3; ++replay) {
    state.memory.Upload(before);
    out.data.Poison();
    graph.Replay(stream);
    CheckCuda(cudaStreamSynchronize(stream), "replay");
    EXPECT_EQ(out.data.Download(), expected);
    EXPECT_EQ(Bits(state.memory.Download(), 0, left.size()), Bits(left, 0, left.size()));
  }
  CheckCuda(cudaStreamDestroy(stream), "stream");
}

TEST(ShortConvolution, RefusesWhatItCannotCompute) {
  const TestRows rows({{4, 0, 0}}, /*spare=*/0);
  const Layer layer({64, 3, true}, 4, false);
  const TestSlots state(layer.StateFloats(), 1);
  const TestActivation out(4, 64, Scaling::kNone);
  const ShortConvolutionArgs valid = layer.Args(rows, 0, state, out.view);
  ASSERT_EQ(LaunchShortConvolution(valid, nullptr), cudaSuccess);
  const auto refuses = [&](auto&& change) {
    ShortConvolutionArgs args = valid;
    change(args);
    return LaunchShortConvolution(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refuses([](ShortConvolutionArgs& a) { a.channels = 60; }));
  EXPECT_TRUE(refuses([](ShortConvolutionArgs& a) { a.channels = 4104; }));
  EXPECT_TRUE(refuses([](ShortConvolutionArgs& a) { a.width = 0; }));
  EXPECT_TRUE(refuses([](ShortConvolutionArgs& a) { a.width = 9; }));
  EXPECT_TRUE(refuses([](ShortConvolutionArgs& a) { a.bcx.stride = 184; }));
  EXPECT_TRUE(refuses([](ShortConvolutionArgs& a) { ++a.bcx_bias; }));
  EXPECT_TRUE(refuses([](ShortConvolutionArgs& a) { ++a.weights; }));
  EXPECT_TRUE(refuses([](ShortConvolutionArgs& a) { ++a.bias; }));
  EXPECT_TRUE(refuses([](ShortConvolutionArgs& a) { a.state.data = nullptr; }));
  EXPECT_TRUE(refuses([](ShortConvolutionArgs& a) { a.state.slot_stride = 124; }));
  EXPECT_TRUE(refuses([](ShortConvolutionArgs& a) { a.out.stride = 64; }));
  EXPECT_TRUE(refuses([](ShortConvolutionArgs& a) { a.rows.slots = nullptr; }));
}

}  // namespace
}  // namespace millrace::kernels
