#include "kernels/moe/combine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/norm/rms_norm.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

struct Case {
  Case(int tokens, int slots, int width)
      : tokens(tokens),
        slots(slots),
        width(width),
        stride(width + 8),
        residual(RandomNormal(static_cast<size_t>(tokens) * width, 1)),
        y(ToBf16(RandomNormal(static_cast<size_t>(tokens) * slots * stride, 2))),
        shared(ToBf16(RandomNormal(static_cast<size_t>(tokens) * stride, 3))),
        token_scales(RandomNormal(tokens, 6)),
        channel_scales(RandomNormal(width, 7)),
        scores(RandomNormal(static_cast<size_t>(tokens) * slots, 4)),
        logits(RandomNormal(static_cast<size_t>(tokens) * 3, 5)) {
    for (int pair = 0; pair < tokens * slots; ++pair) ids.push_back(pair * 7 % 10);
  }
  int tokens, slots, width;
  int64_t stride;
  std::vector<float> residual;
  std::vector<Bf16> y, shared;
  std::vector<float> token_scales, channel_scales;  // of the shared network
  std::vector<float> scores, logits;
  std::vector<int32_t> ids;
};

// The arguments of a launch beside the experts' outputs.
struct Form {
  bool fp32, local, shared;
  bool gated;  // and the shared network's product has scales
  float factor;
};

// The residual after a launch on `tokens` tokens from `first` on.
std::vector<float> Combined(const Case& test, const Form& form, int first, int tokens) {
  std::vector<float> y_floats;
  for (const Bf16 value : test.y) y_floats.push_back(static_cast<float>(value));
  const DeviceBuffer<Bf16> y(test.y), shared(test.shared);
  const DeviceBuffer<float> y_fp32(y_floats), scores(test.scores), logits(test.logits);
  const DeviceBuffer<float> residual(test.residual);
  const DeviceBuffer<float> token_scales(test.token_scales), channel_scales(test.channel_scales);
  const Product product = {.data = shared.get() + first * test.stride,
                           .stride = test.stride,
                           .token_scales = form.gated ? token_scales.get() + first : nullptr,
                           .channel_scales = form.gated ? channel_scales.get() : nullptr};
  const DeviceBuffer<int32_t> ids(test.ids);
  const int64_t pair = static_cast<int64_t>(first) * test.slots;
  EXPECT_EQ(
      LaunchCombine({.residual = residual.get() + static_cast<int64_t>(first) * test.width,
                     .y = form.fp32 ? static_cast<const void*>(y_fp32.get() + pair * test.stride)
                                    : static_cast<const void*>(y.get() + pair * test.stride),
                     .y_type = form.fp32 ? Type::kF32 : Type::kBf16,
                     .y_stride = test.stride,
                     .scores = scores.get() + pair,
                     .ids = form.local ? ids.get() + pair : nullptr,
                     .first_expert = 2,
                     .experts = 5,
                     .shared = form.shared ? product : Product{},
                     .shared_logits =
                         form.gated ? logits.get() + static_cast<int64_t>(first) * 3 + 1 : nullptr,
                     .shared_logit_stride = 3,
                     .factor = form.factor,
                     .tokens = tokens,
                     .slots = test.slots,
                     .width = test.width},
                    nullptr),
      cudaSuccess);
  EXPECT_TRUE(residual.GuardsIntact());
  return residual.Download();
}

TEST(CombineTest, MatchesDoubleAndDependsOnTheTokenAlone) {
  for (const int width : {8, 576, 2880, 4096}) {
    for (const int slots : {1, 2, 4, 5, 8, 16}) {
      const Case test(21, slots, width);
      for (const Form& form : {Form{false, false, false, false, 1},
                               {true, false, false, false, 0.5f},
                               {false, true, true, false, 1},
                               {false, true, true, true, 0.22f},
                               {true, true, true, true, 1}}) {
        SCOPED_TRACE(testing::Message() << width << " columns, " << slots << " slots");
        const std::vector<float> all = Combined(test, form, 0, 21);
        for (int token = 0; token < 21; ++token) {
          for (int c = 0; c < width; ++c) {
            double sum = 0;
            for (int slot = 0; slot < slots; ++slot) {
              const int pair = token * slots + slot;
              if (form.local && (test.ids[pair] < 2 || test.ids[pair] >= 7)) continue;
              sum += test.scores[pair] *
                     static_cast<double>(static_cast<float>(test.y[pair * test.stride + c]));
            }
            if (form.shared) {
              double gate = 1;
              if (form.gated) {
                gate = test.token_scales[token] * test.channel_scales[c] /
                       (1 + std::exp(-test.logits[token * 3 + 1]));
              }
              sum += gate * static_cast<float>(test.shared[token * test.stride + c]);
            }
            const size_t at = static_cast<size_t>(token) * width + c;
            ASSERT_NEAR(all[at], test.residual[at] + form.factor * sum, 2e-5) << token << ", " << c;
          }
        }
        const std::vector<float> one = Combined(test, form, 13, 1);
        for (size_t i = 0; i < one.size(); ++i) {
          const bool own = i / width == 13;
          ASSERT_EQ(one[i], own ? all[i] : test.residual[i]) << i;
        }
      }
    }
  }
}

// Rows that no expert wrote are not read: they are NaN here.
TEST(CombineTest, LeavesOutTheExpertsOfOthers) {
  Case test(4, 2, 64);
  for (int pair = 0; pair < 8; ++pair) {
    if (test.ids[pair] >= 2 && test.ids[pair] < 7) continue;
    for (int c = 0; c < 64; ++c) {
      test.y[pair * test.stride + c] = __float2bfloat16(std::nanf(""));
    }
  }
  for (const float value : Combined(test, {false, true, false, false, 1}, 0, 4)) {
    ASSERT_FALSE(std::isnan(value));
  }
}

// A rank's partial sum is the sum that the residual gets with the factor 1, rounded to BF16.
TEST(CombineTest, APartialSumIsTheSumInBf16) {
  Case test(5, 4, 576);
  std::fill(test.residual.begin(), test.residual.end(), 0.0f);
  const std::vector<float> sums = Combined(test, {false, true, false, false, 1}, 0, 5);
  const DeviceBuffer<Bf16> y(test.y), partial(test.residual.size());
  const DeviceBuffer<float> scores(test.scores);
  const DeviceBuffer<int32_t> ids(test.ids);
  ASSERT_EQ(LaunchCombine({.residual = nullptr,
                           .y = y.get(),
                           .y_type = Type::kBf16,
                           .y_stride = test.stride,
                           .scores = scores.get(),
                           .ids = ids.get(),
                           .first_expert = 2,
                           .experts = 5,
                           .factor = 3,
                           .tokens = 5,
                           .slots = 4,
                           .width = test.width,
                           .partial = partial.get()},
                          nullptr),
            cudaSuccess);
  const std::vector<Bf16> out = partial.Download();
  for (size_t i = 0; i < sums.size(); ++i) {
    ASSERT_EQ(static_cast<float>(out[i]), static_cast<float>(__float2bfloat16(sums[i]))) << i;
  }
  EXPECT_TRUE(partial.GuardsIntact());
}

// LaunchRmsNorm combines first, with the bits of both launches one behind the other.
TEST(CombineTest, ANormMayCombineFirst) {
  for (const int width : {64, 2048, 2880, 6144}) {
    for (const bool has_shared : {false, true}) {
      SCOPED_TRACE(testing::Message() << width << " columns, shared " << has_shared);
      const Case test(5, 6, width);
      const DeviceBuffer<Bf16> y(test.y), shared(test.shared);
      const DeviceBuffer<float> scores(test.scores), logits(test.logits);
      const DeviceBuffer<float> weight(RandomNormal(width, 8));
      const int64_t stride = (width + kColumnPadding - 1) / kColumnPadding * kColumnPadding;
      std::vector<float> residuals[2];
      std::vector<Bf16> norms[2];
      for (const bool fused : {false, true}) {
        const DeviceBuffer<float> residual(test.residual);
        const DeviceBuffer<Bf16> out(test.tokens * stride);
        Product product{};
        if (has_shared) product = {shared.get(), test.stride, nullptr, nullptr};
        const CombineArgs combine = {.residual = residual.get(),
                                     .y = y.get(),
                                     .y_type = Type::kBf16,
                                     .y_stride = test.stride,
                                     .scores = scores.get(),
                                     .shared = product,
                                     .shared_logits = has_shared ? logits.get() : nullptr,
                                     .shared_logit_stride = 3,
                                     .factor = 0.7f,
                                     .tokens = test.tokens,
                                     .slots = test.slots,
                                     .width = width};
        if (!fused) EXPECT_EQ(LaunchCombine(combine, nullptr), cudaSuccess);
        EXPECT_EQ(LaunchRmsNorm({.residual = residual.get(),
                                 .delta = {},
                                 .weight = weight.get(),
                                 .epsilon = 1e-5f,
                                 .tokens = test.tokens,
                                 .width = width,
                                 .out = Bf16Rows(out.get(), stride),
                                 .mixture = fused ? &combine : nullptr},
                                nullptr),
                  cudaSuccess);
        CheckCuda(cudaDeviceSynchronize(), "norm");
        EXPECT_TRUE(residual.GuardsIntact() && out.GuardsIntact());
        residuals[fused] = residual.Download();
        norms[fused] = out.Download();
      }
      EXPECT_EQ(residuals[0], residuals[1]);
      ASSERT_EQ(norms[0].size(), norms[1].size());
      EXPECT_EQ(memcmp(norms[0].data(), norms[1].data(), norms[0].size() * sizeof(Bf16)), 0);
    }
  }
}

TEST(CombineTest, RefusesWhatItCannotDo) {
  const DeviceBuffer<float> memory(std::vector<float>(4096, 0));
  const auto refused = [&](auto change) {
    CombineArgs args = {.residual = memory.get(),
                        .y = memory.get() + 1024,
                        .y_type = Type::kBf16,
                        .y_stride = 64,
                        .scores = memory.get(),
                        .ids = nullptr,
                        .factor = 1,
                        .tokens = 2,
                        .slots = 2,
                        .width = 64};
    change(args);
    return LaunchCombine(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_FALSE(refused([](CombineArgs&) {}));
  EXPECT_TRUE(refused([](CombineArgs& a) { a.width = 60; }));
  EXPECT_TRUE(refused([](CombineArgs& a) { a.y_stride = 56; }));
  EXPECT_TRUE(refused([](CombineArgs& a) { a.y_type = Type::kFp8; }));
  EXPECT_TRUE(refused([](CombineArgs& a) { a.slots = 17; }));
  EXPECT_TRUE(refused([](CombineArgs& a) { a.scores = nullptr; }));
  EXPECT_TRUE(refused([&](CombineArgs& a) { a.shared_logits = memory.get(); }));
  CheckCuda(cudaDeviceSynchronize(), "combine");
}

}  // namespace
}  // namespace millrace::kernels
