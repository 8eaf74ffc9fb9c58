#include "kernels/elementwise/gate_heads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/activation_test_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

struct Shape {
  int tokens, heads, head_size;
  bool scaled, bias;

  int Width() const { return heads * head_size; }
  int QkvColumns() const { return 2 * Width() + 2 * head_size; }  // of one kv head
  std::string Name(Scaling scaling) const {
    return std::to_string(tokens) + " x " + std::to_string(heads) + " x " +
           std::to_string(head_size) + (scaled ? " scaled " : " ") + (bias ? "biased " : "") +
           ScalingName(scaling);
  }
};

struct Case {
  explicit Case(const Shape& shape)
      : shape(shape),
        in(shape.tokens, shape.Width(), false, 1),
        qkv(shape.tokens, shape.QkvColumns(), shape.scaled, 4),
        bias(RandomNormal(shape.QkvColumns(), 7)) {}

  GateHeadsArgs Args(const Activation& out) const {
    return {.in = in.data.get(),
            .in_stride = in.stride,
            .qkv = qkv.view,
            .bias = shape.bias ? bias.get() : nullptr,
            .tokens = shape.tokens,
            .heads = shape.heads,
            .head_size = shape.head_size,
            .out = out};
  }

  // Returns the arguments of one token by itself.
  GateHeadsArgs Alone(int token, const Activation& out) const {
    GateHeadsArgs args = Args(out);
    args.tokens = 1;
    args.in += token * args.in_stride;
    args.qkv.data += token * args.qkv.stride;
    if (shape.scaled) args.qkv.token_scales += token;
    return args;
  }

  std::vector<double> Reference() const {
    const std::vector<float> added = bias.Download();
    std::vector<double> out(in.values);
    for (int t = 0; t < shape.tokens; ++t) {
      for (int h = 0; h < shape.heads; ++h) {
        for (int d = 0; d < shape.head_size; ++d) {
          const int column = (2 * h + 1) * shape.head_size + d;
          double gate = qkv.values[static_cast<size_t>(t) * shape.QkvColumns() + column];
          if (shape.bias) gate += added[column];
          out[static_cast<size_t>(t) * shape.Width() + h * shape.head_size + d] *=
              1 / (1 + std::exp(-gate));
        }
      }
    }
    return out;
  }

  const Shape shape;
  const TestProduct in, qkv;
  const DeviceBuffer<float> bias;
};

TEST(GateHeads, MatchesDoubleAtAllShapesAndScalings) {
  const Shape shapes[] = {
      {1, 24, 256, false, false},                              // Qwen3.5-27B
      {33, 24, 256, true, false}, {3, 6, 256, false, false},   // the same on one of four ranks
      {1, 16, 256, true, true},                                // 35B-A3B, with biases
      {17, 3, 96, false, true},                                // a width that is padded
      {3, 5, 64, true, true},     {515, 2, 64, false, false},  // many tokens
      {515, 1, 256, true, false}, {2, 100, 256, true, true},   // the widest rows
  };
  for (const Shape& shape : shapes) {
    const Case test(shape);
    const std::vector<double> expected = test.Reference();
    for (const Scaling scaling : kAllScalings) {
      SCOPED_TRACE(shape.Name(scaling));
      const TestActivation out(shape.tokens, shape.Width(), scaling);
      ASSERT_EQ(LaunchGateHeads(test.Args(out.view), nullptr), cudaSuccess);
      ExpectActivation(out, expected);
      if (HasFatalFailure()) return;
    }
  }
}

// Many tokens go through another kernel than few.
TEST(GateHeads, TokensBitsDependOnTheTokenAlone) {
  for (const Shape& shape : {Shape{515, 3, 256, false, false}, Shape{515, 2, 96, true, true}}) {
    const Case test(shape);
    for (const Scaling scaling : kAllScalings) {
      SCOPED_TRACE(shape.Name(scaling));
      const TestActivation all(shape.tokens, shape.Width(), scaling);
      ASSERT_EQ(LaunchGateHeads(test.Args(all.view), nullptr), cudaSuccess);
      for (const int token : {0, 1, 257, 514}) {
        const TestActivation alone(1, shape.Width(), scaling);
        ASSERT_EQ(LaunchGateHeads(test.Alone(token, alone.view), nullptr), cudaSuccess);
        EXPECT_EQ(alone.RowBytes(0), all.RowBytes(token)) << "token " << token;
      }
    }
  }
}

// Gates of half leave half, and the limits of the sigmoid leave all or nothing, without NaN.
TEST(GateHeads, ReachesTheLimitsOfTheSigmoid) {
  constexpr int kSize = 8;
  const float gates[kSize] = {0, -0.0f, 20, 100, 1e30f, -90, -1e4f, -1e30f};
  const float expected[kSize] = {1, 1, 2, 2, 2, 0, 0, 0};
  std::vector<float> row(4 * kSize, 7.0f);
  std::copy(gates, gates + kSize, row.begin() + kSize);
  const DeviceBuffer<Bf16> qkv(ToBf16(row)), in(ToBf16(std::vector<float>(kSize, 2.0f)));
  const TestActivation out(1, kSize, Scaling::kNone);
  ASSERT_EQ(LaunchGateHeads({.in = in.get(),
                             .in_stride = kSize,
                             .qkv = {qkv.get(), 4 * kSize, nullptr, nullptr},
                             .bias = nullptr,
                             .tokens = 1,
                             .heads = 1,
                             .head_size = kSize,
                             .out = out.view},
                            nullptr),
            cudaSuccess);
  const std::vector<uint8_t> data = out.data.Download();
  for (int c = 0; c < kSize; ++c) {
    EXPECT_EQ(__bfloat162float(reinterpret_cast<const Bf16*>(data.data())[c]), expected[c])
        << gates[c];
  }
}

TEST(GateHeads, RefusesWhatItCannotDo) {
  const Case test({2, 4, 64, true, true});
  const TestActivation out(2, 256, Scaling::kToken);
  const auto refused = [&](const auto& change) {
    GateHeadsArgs args = test.Args(out.view);
    change(args);
    return LaunchGateHeads(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_FALSE(refused([](GateHeadsArgs& a) { a.tokens = 0; }));
  EXPECT_TRUE(refused([](GateHeadsArgs& a) { a.tokens = -1; }));
  EXPECT_TRUE(refused([](GateHeadsArgs& a) { a.heads = 0; }));
  EXPECT_TRUE(refused([](GateHeadsArgs& a) { a.heads = 5; }));
  EXPECT_TRUE(refused([](GateHeadsArgs& a) { a.head_size = 60; }));
  EXPECT_TRUE(refused([](GateHeadsArgs& a) { a.in = nullptr; }));
  EXPECT_TRUE(refused([](GateHeadsArgs& a) { a.in += 1; }));
  EXPECT_TRUE(refused([](GateHeadsArgs& a) { a.in_stride = 248; }));
  EXPECT_TRUE(refused([](GateHeadsArgs& a) { a.qkv.stride = 504; }));
  EXPECT_TRUE(refused([](GateHeadsArgs& a) { a.bias += 1; }));
  EXPECT_TRUE(refused([](GateHeadsArgs& a) { a.out.scales = nullptr; }));
}

}  // namespace
}  // namespace millrace::kernels
