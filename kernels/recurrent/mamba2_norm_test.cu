#include "kernels/recurrent/mamba2_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/activation_test_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr float kEpsilon = 1e-5f;

struct Case {
  Case(int tokens, int width, int group_width, bool scaled)
      : tokens(tokens),
        width(width),
        group_width(group_width),
        x(RandomNormal(static_cast<size_t>(tokens) * width, 1, 0.3f)),
        gate(tokens, width, scaled, 2),
        weight(RandomNormal(width, 3)) {}

  Mamba2NormArgs Args(const Activation& out) const {
    return {.x = x.get(),
            .gate = gate.view,
            .weight = weight.get(),
            .epsilon = kEpsilon,
            .tokens = tokens,
            .width = width,
            .group_width = group_width,
            .out = out};
  }

  std::vector<double> Reference() const {
    std::vector<double> out(x.size());
    const std::vector<float> values = x.Download(), weights = weight.Download();
    for (size_t first = 0; first < out.size(); first += group_width) {
      double squares = 0;
      for (size_t i = first; i < first + group_width; ++i) {
        const double gated = gate.values[i];
        out[i] = values[i] * gated / (1 + std::exp(-gated));
        squares += out[i] * out[i];
      }
      for (size_t i = first; i < first + group_width; ++i) {
        out[i] *= weights[i % width] / std::sqrt(squares / group_width + kEpsilon);
      }
    }
    return out;
  }

  int tokens, width, group_width;
  DeviceBuffer<float> x;
  TestProduct gate;
  DeviceBuffer<float> weight;
};

struct Size {
  int width;
  int group_width;
};
constexpr Size kSizes[] = {{256, 256},   {512, 256},   {768, 768},  {4096, 512},
                           {3072, 3072}, {8192, 1024}, {8192, 8192}};

TEST(Mamba2Norm, MatchesDoubleAtAllSizesAndScalings) {
  for (const Size& size : kSizes) {
    for (const int tokens : {1, 3, 31, 600}) {
      if (tokens * size.width > kMaxElements) continue;
      for (const Scaling scaling : kAllScalings) {
        for (const bool scaled : {false, true}) {
          SCOPED_TRACE(std::to_string(tokens) + " x " + std::to_string(size.width) + " by " +
                       std::to_string(size.group_width) + " " + ScalingName(scaling) +
                       (scaled ? " scaled" : ""));
          const Case test(tokens, size.width, size.group_width, scaled);
          const TestActivation out(tokens, size.width, scaling);
          ASSERT_EQ(LaunchMamba2Norm(test.Args(out.view), nullptr), cudaSuccess);
          ExpectActivation(out, test.Reference());
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Mamba2Norm, RowsBitsDependOnTheRowAlone) {
  constexpr int kTokens = 515, kWidth = 1536;
  for (const Scaling scaling : kAllScalings) {
    const Case all(kTokens, kWidth, 512, true);
    const TestActivation out(kTokens, kWidth, scaling);
    ASSERT_EQ(LaunchMamba2Norm(all.Args(out.view), nullptr), cudaSuccess);
    for (const int token : {0, 31, 514}) {
      const TestActivation alone(1, kWidth, scaling);
      Mamba2NormArgs args = all.Args(alone.view);
      args.tokens = 1;
      args.x += static_cast<int64_t>(token) * kWidth;
      args.gate.data += token * args.gate.stride;
      args.gate.token_scales += token;
      ASSERT_EQ(LaunchMamba2Norm(args, nullptr), cudaSuccess);
      EXPECT_EQ(alone.RowBytes(0), out.RowBytes(token)) << ScalingName(scaling);
    }
  }
}

TEST(Mamba2Norm, RefusesWhatItCannotCompute) {
  const Case test(2, 512, 256, false);
  const TestActivation out(2, 512, Scaling::kNone);
  const Mamba2NormArgs valid = test.Args(out.view);
  ASSERT_EQ(LaunchMamba2Norm(valid, nullptr), cudaSuccess);
  const auto refuses = [&](auto&& change) {
    Mamba2NormArgs args = valid;
    change(args);
    return LaunchMamba2Norm(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refuses([](Mamba2NormArgs& a) { a.width = 8448; }));
  EXPECT_TRUE(refuses([](Mamba2NormArgs& a) { a.group_width = 128; }));
  EXPECT_TRUE(refuses([](Mamba2NormArgs& a) { a.group_width = 768; }));
  EXPECT_TRUE(refuses([](Mamba2NormArgs& a) { a.tokens = -1; }));
  EXPECT_TRUE(refuses([](Mamba2NormArgs& a) { ++a.x; }));
  EXPECT_TRUE(refuses([](Mamba2NormArgs& a) { a.weight = nullptr; }));
  EXPECT_TRUE(refuses([](Mamba2NormArgs& a) { a.gate.stride = 504; }));
  EXPECT_TRUE(refuses([](Mamba2NormArgs& a) { a.epsilon = -1; }));
  EXPECT_TRUE(refuses([](Mamba2NormArgs& a) { a.out.stride = 384; }));
}

}  // namespace
}  // namespace millrace::kernels
