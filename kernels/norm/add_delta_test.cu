#include "kernels/norm/add_delta.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/activation_test_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr float kEpsilon = 1e-5f;

struct Form {
  bool scaled, bias, norm;
  float factor;
};
constexpr Form kForms[] = {{false, false, true, 1},
                           {true, true, true, 0.22f},
                           {false, true, false, 1},
                           {true, false, false, 3}};

// The inputs of one call and its expected output.
struct Case {
  Case(int tokens, int width, const Form& form)
      : tokens(tokens),
        width(width),
        form(form),
        before(RandomNormal(static_cast<size_t>(tokens) * width, 1, 3)),
        residual(before),
        weight(RandomNormal(width, 2)),
        bias(RandomNormal(width, 3)),
        delta(tokens, width, form.scaled, 4) {}

  AddDeltaArgs Args() const {
    return {.residual = residual.get(),
            .delta = delta.view,
            .bias = form.bias ? bias.get() : nullptr,
            .weight = form.norm ? weight.get() : nullptr,
            .epsilon = kEpsilon,
            .factor = form.factor,
            .tokens = tokens,
            .width = width};
  }

  // Computes the new residual in double.
  std::vector<double> Reference() const {
    const std::vector<float> weights = weight.Download(), biases = bias.Download();
    std::vector<double> sum(before.begin(), before.end());
    for (int t = 0; t < tokens; ++t) {
      const size_t first = static_cast<size_t>(t) * width;
      std::vector<double> y(delta.values.begin() + first, delta.values.begin() + first + width);
      double squares = 0;
      for (int c = 0; c < width; ++c) {
        if (form.bias) y[c] += biases[c];
        squares += y[c] * y[c];
      }
      const double inverse = 1 / std::sqrt(squares / width + kEpsilon);
      for (int c = 0; c < width; ++c) {
        sum[first + c] += form.factor * y[c] * (form.norm ? inverse * weights[c] : 1);
      }
    }
    return sum;
  }

  int tokens, width;
  Form form;
  std::vector<float> before;
  DeviceBuffer<float> residual, weight, bias;
  TestProduct delta;
};

TEST(AddDelta, MatchesDoubleAtAllWidths) {
  for (const int width : {8, 64, 576, 4096, 5120, 8192, 16384}) {
    for (const int tokens : {1, 3, 65}) {
      if (tokens * width > kMaxElements) continue;
      for (size_t form = 0; form < std::size(kForms); ++form) {
        SCOPED_TRACE(std::to_string(tokens) + " x " + std::to_string(width) + " form " +
                     std::to_string(form));
        const Case test(tokens, width, kForms[form]);
        ASSERT_EQ(LaunchAddDelta(test.Args(), nullptr), cudaSuccess);
        const std::vector<double> expected = test.Reference();
        const std::vector<float> found = test.residual.Download();
        for (size_t i = 0; i < found.size(); ++i) {
          ASSERT_NEAR(found[i], expected[i], 1e-5 * (1 + std::abs(expected[i]))) << i;
        }
        EXPECT_TRUE(test.residual.GuardsIntact());
      }
    }
  }
}

TEST(AddDelta, RowsBitsDependOnTheRowAlone) {
  constexpr int kTokens = 70;
  for (const int width : {576, 5120, 16384}) {
    const Case all(kTokens, width, kForms[1]), alone(kTokens, width, kForms[1]);
    ASSERT_EQ(LaunchAddDelta(all.Args(), nullptr), cudaSuccess);
    for (int t = 0; t < kTokens; ++t) {
      AddDeltaArgs args = alone.Args();
      args.tokens = 1;
      args.residual += static_cast<int64_t>(t) * width;
      args.delta.data += t * args.delta.stride;
      args.delta.token_scales += t;
      ASSERT_EQ(LaunchAddDelta(args, nullptr), cudaSuccess);
    }
    EXPECT_EQ(all.residual.Download(), alone.residual.Download()) << width;
  }
}

TEST(AddDelta, KeepsNaNInItsRow) {
  constexpr int kTokens = 3, kWidth = 576;
  const Case test(kTokens, kWidth, kForms[0]);
  std::vector<Bf16> delta = test.delta.data.Download();
  delta[test.delta.stride + 100] = __float2bfloat16(std::nanf(""));
  for (int c = 0; c < kWidth; ++c) delta[2 * test.delta.stride + c] = __float2bfloat16(0);
  CheckCuda(cudaMemcpy(test.delta.data.get(), delta.data(), delta.size() * sizeof(Bf16),
                       cudaMemcpyHostToDevice),
            "upload");
  ASSERT_EQ(LaunchAddDelta(test.Args(), nullptr), cudaSuccess);
  const std::vector<float> found = test.residual.Download();
  for (int c = 0; c < kWidth; ++c) {
    ASSERT_FALSE(std::isnan(found[c])) << c;
    ASSERT_TRUE(std::isnan(found[kWidth + c])) << c;
    ASSERT_EQ(found[2 * kWidth + c], test.before[2 * kWidth + c]) << c;
  }
}

TEST(AddDelta, RefusesWhatItCannotDo) {
  const Case test(2, 64, kForms[1]);
  const auto refused = [&](auto change) {
    AddDeltaArgs args = test.Args();
    change(args);
    return LaunchAddDelta(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([](AddDeltaArgs& a) { a.width = 60; }));
  EXPECT_TRUE(refused([](AddDeltaArgs& a) { a.width = 16392; }));
  EXPECT_TRUE(refused([](AddDeltaArgs& a) { a.tokens = -1; }));
  EXPECT_TRUE(refused([](AddDeltaArgs& a) { a.residual += 1; }));
  EXPECT_TRUE(refused([](AddDeltaArgs& a) { a.residual = nullptr; }));
  EXPECT_TRUE(refused([](AddDeltaArgs& a) { a.delta.data = nullptr; }));
  EXPECT_TRUE(refused([](AddDeltaArgs& a) { a.delta.stride = 32; }));
  EXPECT_TRUE(refused([](AddDeltaArgs& a) { a.weight += 1; }));
  EXPECT_TRUE(refused([](AddDeltaArgs& a) { a.bias += 1; }));
  EXPECT_TRUE(refused([](AddDeltaArgs& a) { a.epsilon = -1; }));
  AddDeltaArgs none = test.Args();
  none.tokens = 0;
  EXPECT_EQ(LaunchAddDelta(none, nullptr), cudaSuccess);
  EXPECT_EQ(test.residual.Download(), test.before);
}

}  // namespace
}  // namespace millrace::kernels
