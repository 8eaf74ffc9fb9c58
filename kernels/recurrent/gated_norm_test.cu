#include "kernels/recurrent/gated_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/activation_test_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr int kHeadSize = 128;
constexpr float kEpsilon = 1e-6f;

struct Case {
  Case(int tokens, int heads, bool scaled)
      : tokens(tokens),
        heads(heads),
        x(RandomNormal(static_cast<size_t>(tokens) * heads * kHeadSize, 1, 0.3f)),
        gate(tokens, heads * kHeadSize, scaled, 2),
        weight(RandomNormal(kHeadSize, 3)) {}

  GatedNormArgs Args(const Activation& out) const {
    return {.x = x.get(),
            .gate = gate.view,
            .weight = weight.get(),
            .epsilon = kEpsilon,
            .tokens = tokens,
            .heads = heads,
            .out = out};
  }

  std::vector<double> Reference() const {
    const std::vector<float> values = x.Download(), weights = weight.Download();
    std::vector<double> out(values.size());
    for (size_t first = 0; first < values.size(); first += kHeadSize) {
      double squares = 0;
      for (int i = 0; i < kHeadSize; ++i) {
        squares += static_cast<double>(values[first + i]) * values[first + i];
      }
      for (int i = 0; i < kHeadSize; ++i) {
        const double gated = gate.values[first + i];
        out[first + i] = values[first + i] / std::sqrt(squares / kHeadSize + kEpsilon) *
                         weights[i] * gated / (1 + std::exp(-gated));
      }
    }
    return out;
  }

  int tokens, heads;
  DeviceBuffer<float> x;
  TestProduct gate;
  DeviceBuffer<float> weight;
};

// Odd numbers of heads leave half a warp.
TEST(GatedNorm, MatchesDoubleAtAllSizesAndScalings) {
  for (const int heads : {1, 3, 16, 32, 48, 63, 64}) {
    for (const int tokens : {1, 3, 17, 255, 600}) {
      if (tokens * heads * kHeadSize > kMaxElements) continue;
      for (const Scaling scaling : kAllScalings) {
        for (const bool scaled : {false, true}) {
          SCOPED_TRACE(std::to_string(tokens) + " x " + std::to_string(heads) + " " +
                       ScalingName(scaling) + (scaled ? " scaled" : ""));
          const Case test(tokens, heads, scaled);
          const TestActivation out(tokens, heads * kHeadSize, scaling);
          ASSERT_EQ(LaunchGatedNorm(test.Args(out.view), nullptr), cudaSuccess);
          ExpectActivation(out, test.Reference());
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(GatedNorm, RowsBitsDependOnTheRowAlone) {
  constexpr int kTokens = 515;
  for (const int heads : {3, 48}) {
    for (const Scaling scaling : kAllScalings) {
      const Case all(kTokens, heads, true);
      const TestActivation out(kTokens, heads * kHeadSize, scaling);
      ASSERT_EQ(LaunchGatedNorm(all.Args(out.view), nullptr), cudaSuccess);
      for (const int token : {0, 31, 514}) {
        const TestActivation alone(1, heads * kHeadSize, scaling);
        GatedNormArgs args = all.Args(alone.view);
        args.tokens = 1;
        args.x += static_cast<int64_t>(token) * heads * kHeadSize;
        args.gate.data += token * args.gate.stride;
        args.gate.token_scales += token;
        ASSERT_EQ(LaunchGatedNorm(args, nullptr), cudaSuccess);
        EXPECT_EQ(alone.RowBytes(0), out.RowBytes(token)) << heads << " " << ScalingName(scaling);
      }
    }
  }
}

TEST(GatedNorm, RefusesWhatItCannotCompute) {
  const Case test(2, 3, false);
  const TestActivation out(2, 3 * kHeadSize, Scaling::kNone);
  const GatedNormArgs valid = test.Args(out.view);
  ASSERT_EQ(LaunchGatedNorm(valid, nullptr), cudaSuccess);
  const auto refuses = [&](auto&& change) {
    GatedNormArgs args = valid;
    change(args);
    return LaunchGatedNorm(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refuses([](GatedNormArgs& a) { a.heads = 0; }));
  EXPECT_TRUE(refuses([](GatedNormArgs& a) { a.heads = 65; }));
  EXPECT_TRUE(refuses([](GatedNormArgs& a) { a.tokens = -1; }));
  EXPECT_TRUE(refuses([](GatedNormArgs& a) { ++a.x; }));
  EXPECT_TRUE(refuses([](GatedNormArgs& a) { a.weight = nullptr; }));
  EXPECT_TRUE(refuses([](GatedNormArgs& a) { a.gate.stride = 2 * kHeadSize; }));
  EXPECT_TRUE(refuses([](GatedNormArgs& a) { a.epsilon = -1; }));
  EXPECT_TRUE(refuses([](GatedNormArgs& a) { a.out.stride = 2 * kHeadSize; }));
}

}  // namespace
}  // namespace millrace::kernels
