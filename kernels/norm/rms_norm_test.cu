#include "kernels/norm/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <vector>

#include "kernels/activation_test_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr float kEpsilon = 1e-5f;

// The inputs of one call and its expected outputs.
struct Case {
  Case(int tokens, int width, bool with_delta, bool scaled)
      : tokens(tokens),
        width(width),
        residual_before(RandomNormal(static_cast<size_t>(tokens) * width, 1, 3)),
        residual(residual_before),
        weight(RandomNormal(width, 2)),
        bias(RandomNormal(width, 4)),
        delta(tokens, width, scaled, 3),
        with_delta(with_delta) {}

  RmsNormArgs Args(const Activation& out) const {
    return {.residual = residual.get(),
            .delta = with_delta ? delta.view : Product{},
            .weight = weight.get(),
            .epsilon = kEpsilon,
            .tokens = tokens,
            .width = width,
            .out = out,
            .delta_factor = factor,
            .delta_bias = with_bias ? bias.get() : nullptr};
  }

  // Computes residual + delta and its norm in double.
  std::pair<std::vector<double>, std::vector<double>> Reference() const {
    const std::vector<float> weights = weight.Download(), biases = bias.Download();
    std::vector<double> sum(residual_before.begin(), residual_before.end());
    std::vector<double> norm(sum.size());
    for (int t = 0; t < tokens; ++t) {
      double* row = sum.data() + static_cast<size_t>(t) * width;
      double squares = 0;
      for (int c = 0; c < width; ++c) {
        const double added =
            delta.values[static_cast<size_t>(t) * width + c] + (with_bias ? biases[c] : 0);
        if (with_delta) row[c] += factor * added;
        squares += row[c] * row[c];
      }
      const double inverse = 1 / std::sqrt(squares / width + kEpsilon);
      for (int c = 0; c < width; ++c) {
        norm[static_cast<size_t>(t) * width + c] = row[c] * inverse * weights[c];
      }
    }
    return {sum, norm};
  }

  int tokens, width;
  std::vector<float> residual_before;
  DeviceBuffer<float> residual, weight, bias;
  TestProduct delta;
  bool with_delta;
  float factor = 1;
  bool with_bias = false;
};

TEST(RmsNorm, MatchesDoubleAtAllWidthsAndScalings) {
  for (const int width : {8, 64, 576, 2048, 4096, 5120, 8192, 16384}) {
    for (const int tokens : {1, 3, 17, 48, 63, 65, 255, 2000}) {
      if (tokens * width > kMaxElements) continue;
      for (const Scaling scaling : kAllScalings) {
        // no delta, plain delta, delta with scales, with a factor, with a bias, with all
        for (const int form : {0, 1, 2, 3, 4, 5}) {
          SCOPED_TRACE(std::to_string(tokens) + " x " + std::to_string(width) + " " +
                       ScalingName(scaling) + " form " + std::to_string(form));
          Case test(tokens, width, form > 0, form == 2 || form == 5);
          if (form == 3 || form == 5) test.factor = 0.22f;
          test.with_bias = form >= 4;
          const TestActivation out(tokens, width, scaling);
          ASSERT_EQ(LaunchRmsNorm(test.Args(out.view), nullptr), cudaSuccess);
          const auto [sum, norm] = test.Reference();
          ExpectActivation(out, norm);
          const std::vector<float> after = test.residual.Download();
          for (size_t i = 0; i < after.size(); ++i) {
            ASSERT_NEAR(after[i], sum[i], 1e-5 * (1 + std::abs(sum[i]))) << "residual " << i;
          }
          EXPECT_TRUE(test.residual.GuardsIntact());
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Many rows use another kernel than few, and a factor or a bias another than neither.
TEST(RmsNorm, RowsBitsDependOnTheRowAlone) {
  constexpr int kTokens = 515;
  for (const int width : {576, 4096, 8192}) {
    for (const Scaling scaling : kAllScalings) {
      Case all(kTokens, width, true, true), same(kTokens, width, true, true);
      all.factor = same.factor = width == 4096 ? 0.22f : 1;
      all.with_bias = same.with_bias = width == 8192;
      const TestActivation out(kTokens, width, scaling);
      ASSERT_EQ(LaunchRmsNorm(all.Args(out.view), nullptr), cudaSuccess);
      const std::vector<float> residual = all.residual.Download();
      for (const int token : {0, 31, 514}) {
        const TestActivation alone(1, width, scaling);
        RmsNormArgs args = same.Args(alone.view);
        args.tokens = 1;
        args.residual += static_cast<int64_t>(token) * width;
        args.delta.data += token * args.delta.stride;
        args.delta.token_scales += token;
        ASSERT_EQ(LaunchRmsNorm(args, nullptr), cudaSuccess);
        EXPECT_EQ(alone.RowBytes(0), out.RowBytes(token)) << width << " " << ScalingName(scaling);
        const std::vector<float> own = same.residual.Download();
        EXPECT_TRUE(std::equal(own.begin() + token * width, own.begin() + (token + 1) * width,
                               residual.begin() + token * width));
      }
    }
  }
}

// A bias of zeros takes the kernel with weights, where rounding is that of the sum in order.
TEST(RmsNorm, AddsInTheStatedOrder) {
  constexpr int kTokens = 3;
  for (const int width : {576, 4096, 8192, 16384}) {
    Case plain(kTokens, width, true, false), zeros(kTokens, width, true, false);
    zeros.with_bias = true;
    zeros.bias.Upload(std::vector<float>(width, 0.0f));
    const TestActivation one(kTokens, width, Scaling::kNone), other(kTokens, width, Scaling::kNone);
    ASSERT_EQ(LaunchRmsNorm(plain.Args(one.view), nullptr), cudaSuccess);
    ASSERT_EQ(LaunchRmsNorm(zeros.Args(other.view), nullptr), cudaSuccess);
    EXPECT_EQ(plain.residual.Download(), zeros.residual.Download());
    EXPECT_EQ(one.data.Download(), other.data.Download());

    Case all(kTokens, width, true, true);
    all.factor = 0.22f;
    all.with_bias = true;
    ASSERT_EQ(LaunchRmsNorm(all.Args(one.view), nullptr), cudaSuccess);
    const std::vector<Bf16> elements = all.delta.data.Download();
    const std::vector<float> by_token = all.delta.token_scales.Download(),
                             by_channel = all.delta.channel_scales.Download(),
                             bias = all.bias.Download(), after = all.residual.Download();
    for (int t = 0; t < kTokens; ++t) {
      for (int c = 0; c < width; ++c) {
        const volatile float scaled =
            __bfloat162float(elements[t * all.delta.stride + c]) * by_token[t];
        const volatile float delta = scaled * by_channel[c];
        const volatile float biased = delta + bias[c];
        ASSERT_EQ(after[t * width + c],
                  std::fma(all.factor, biased, all.residual_before[t * width + c]))
            << t << " " << c;
      }
    }
  }
}

TEST(RmsNorm, ZeroRowGivesZerosAndNanStaysInItsRow) {
  constexpr int kTokens = 3, kWidth = 576;
  for (const Scaling scaling : kAllScalings) {
    SCOPED_TRACE(ScalingName(scaling));
    std::vector<float> rows = RandomNormal(kTokens * kWidth, 5);
    for (int c = 0; c < kWidth; ++c) rows[c] = 0;
    rows[kWidth + 100] = std::nanf("");
    const DeviceBuffer<float> residual(rows);
    const DeviceBuffer<float> weight(RandomNormal(kWidth, 6));
    const TestActivation out(kTokens, kWidth, scaling);
    ASSERT_EQ(LaunchRmsNorm({residual.get(), {}, weight.get(), kEpsilon, kTokens, kWidth, out.view},
                            nullptr),
              cudaSuccess);
    const std::vector<uint8_t> data = out.data.Download();
    const auto value = [&](int token, int column) {
      const uint8_t* at = data.data() + (token * out.stride + column) * out.element;
      if (scaling != Scaling::kNone) return FromFp8(*at);
      return static_cast<float>(*reinterpret_cast<const Bf16*>(at));
    };
    for (int c = 0; c < kWidth; ++c) {
      ASSERT_EQ(value(0, c), 0) << c;
      ASSERT_TRUE(std::isnan(value(1, c))) << c;
      ASSERT_FALSE(std::isnan(value(2, c))) << c;
    }
  }
}

TEST(RmsNorm, RefusesWhatItCannotDo) {
  const Case test(2, 64, true, false);
  const TestActivation out(2, 64, Scaling::kToken);
  const auto refused = [&](auto change) {
    RmsNormArgs args = test.Args(out.view);
    change(args);
    return LaunchRmsNorm(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([](RmsNormArgs& a) { a.width = 60; }));
  EXPECT_TRUE(refused([](RmsNormArgs& a) { a.tokens = -1; }));
  EXPECT_TRUE(refused([](RmsNormArgs& a) { a.out.stride = 16384 + 128; }));
  EXPECT_TRUE(refused([](RmsNormArgs& a) { a.out.stride = 64; }));
  EXPECT_TRUE(refused([](RmsNormArgs& a) { a.out.scaling = Scaling::kNone; }));
  EXPECT_TRUE(refused([](RmsNormArgs& a) { a.out.scales = nullptr; }));
  EXPECT_TRUE(refused([](RmsNormArgs& a) { a.residual += 1; }));
  EXPECT_TRUE(refused([](RmsNormArgs& a) { a.weight = nullptr; }));
  EXPECT_TRUE(refused([](RmsNormArgs& a) { a.delta.stride = 32; }));
  EXPECT_TRUE(refused([](RmsNormArgs& a) { a.epsilon = -1; }));
  EXPECT_TRUE(refused([](RmsNormArgs& a) { a.delta_bias = a.weight + 1; }));
  RmsNormArgs none = test.Args(out.view);
  none.tokens = 0;
  EXPECT_EQ(LaunchRmsNorm(none, nullptr), cudaSuccess);
  const std::vector<uint8_t> data = out.data.Download();
  EXPECT_EQ(std::count(data.begin(), data.end(), 0xff), static_cast<int64_t>(data.size()));
}

}  // namespace
}  // namespace millrace::kernels
