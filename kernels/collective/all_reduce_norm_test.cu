#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/activation_test_util.h"
#include "kernels/collective/all_reduce.h"
#include "kernels/collective/all_reduce_kernel.cuh"
#include "kernels/collective/collective_reference.h"
#include "kernels/collective/collective_test_util.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr AllReduceMethod kMethods[] = {AllReduceMethod::kOneShot, AllReduceMethod::kTwoShot};
constexpr float kEpsilon = 1e-5f;

// The ranks' partial sums, and the sum as the delta of the kernel that only norms.
struct Case {
  Case(int ranks, int tokens, int width, bool nan = false)
      : tokens(tokens),
        width(width),
        stride(width + 8),
        start(RandomNormal(static_cast<size_t>(tokens) * width, 1, 3)),
        weight(RandomNormal(width, 2)),
        bias(RandomNormal(width, 4)),
        sum(static_cast<size_t>(tokens) * stride) {
    std::vector<std::vector<Bf16>> partials;
    for (int rank = 0; rank < ranks; ++rank) {
      partials.push_back(TestPartials(rank, static_cast<size_t>(tokens) * stride, width));
      if (nan) partials[rank][stride + 5] = Bf16OfBits(0xffff);
      inputs.emplace_back(partials[rank]);
      residuals.emplace_back(start.size());
    }
    sum.Upload(ReferenceAllReduce(partials));
  }

  RmsNormArgs Args(float* residual, const Bf16* delta, const Activation& out) const {
    return {.residual = residual,
            .delta = {delta, stride, nullptr, nullptr},
            .weight = weight.get(),
            .epsilon = kEpsilon,
            .tokens = tokens,
            .width = width,
            .out = out,
            .delta_factor = factor,
            .delta_bias = with_bias ? bias.get() : nullptr};
  }

  int tokens, width;
  int64_t stride;
  std::vector<float> start;
  DeviceBuffer<float> weight, bias;
  DeviceBuffer<Bf16> sum;
  std::vector<DeviceBuffer<Bf16>> inputs;
  std::vector<DeviceBuffer<float>> residuals;
  float factor = 1;
  bool with_bias = false;
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Launches the fused kernel on all ranks by `run` and expects the bits of LaunchRmsNorm on the sum.
template <typename Run>
void ExpectBitsOfRmsNorm(Case& test, Scaling scaling, const Run& run) {
  const DeviceBuffer<float> residual(test.start);
  const TestActivation expected(test.tokens, test.width, scaling);
  ASSERT_EQ(LaunchRmsNorm(test.Args(residual.get(), test.sum.get(), expected.view), nullptr),
            cudaSuccess);
  std::vector<TestActivation> outs;
  for (size_t rank = 0; rank < test.inputs.size(); ++rank) {
    outs.emplace_back(test.tokens, test.width, scaling);
    test.residuals[rank].Upload(test.start);
  }
  run([&](int rank) {
    return test.Args(test.residuals[rank].get(), test.inputs[rank].get(), outs[rank].view);
  });
  const std::vector<float> after = residual.Download();
  const std::vector<uint8_t> data = expected.data.Download();
  const std::vector<float> scales = expected.scales.Download();
  for (size_t rank = 0; rank < test.inputs.size(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    ASSERT_TRUE(SameBits(test.residuals[rank].Download(), after));
    ASSERT_TRUE(outs[rank].data.Download() == data);
    ASSERT_TRUE(SameBits(outs[rank].scales.Download(), scales));
    EXPECT_TRUE(outs[rank].data.GuardsIntact());
    EXPECT_TRUE(outs[rank].scales.GuardsIntact());
    EXPECT_TRUE(test.residuals[rank].GuardsIntact());
  }
}

TEST(AllReduceNorm, GivesTheBitsOfTheNormOfTheSum) {
  constexpr int kShapes[][2] = {{1, 8},    {3, 64},   {17, 576},  {2, 4096},
                                {3, 5120}, {2, 8192}, {1, 16384}, {40, 256}};
  for (const int ranks : {1, 2, 3, 4, 8}) {
    VirtualRanks group(ranks, 40 * 16384);
    for (const auto& [tokens, width] : kShapes) {
      Case test(ranks, tokens, width);
      for (const Scaling scaling : kAllScalings) {
        for (const int form : {0, 1, 2, 3}) {  // plain, with a factor, with a bias, with both
          if (ranks != 2 && ranks != 4 && form % 3 != 0) continue;
          for (const AllReduceMethod method : kMethods) {
            SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(tokens) + " x " +
                         std::to_string(width) + " " + ScalingName(scaling) + " form " +
                         std::to_string(form) + " method " +
                         std::to_string(static_cast<int>(method)));
            test.factor = form % 2 == 1 ? 0.22f : 1;
            test.with_bias = form >= 2;
            ExpectBitsOfRmsNorm(test, scaling, [&](const auto& args) {
              group.Run([&](int rank, cudaStream_t stream) {
                return LaunchAllReduceNorm({group[rank], method, args(rank)}, stream);
              });
            });
            if (HasFatalFailure()) return;
          }
        }
      }
    }
    EXPECT_TRUE(group.IsQuiet());
  }
}

TEST(AllReduceNorm, NanStaysInItsRow) {
  constexpr int kRanks = 2, kTokens = 3, kWidth = 4096;
  VirtualRanks group(kRanks, 16 * 8192);
  for (const Scaling scaling : kAllScalings) {
    for (const AllReduceMethod method : kMethods) {
      SCOPED_TRACE(ScalingName(scaling));
      Case test(kRanks, kTokens, kWidth, true);
      ExpectBitsOfRmsNorm(test, scaling, [&](const auto& args) {
        group.Run([&](int rank, cudaStream_t stream) {
          return LaunchAllReduceNorm({group[rank], method, args(rank)}, stream);
        });
      });
      const std::vector<float> residual = test.residuals[0].Download();
      for (size_t i = 0; i < residual.size(); ++i) {
        ASSERT_EQ(std::isnan(residual[i]), i == kWidth + 5) << i;
      }
    }
  }
  EXPECT_TRUE(group.IsQuiet());
}

template <int kRanks, bool kTwoShot>
__global__ void __launch_bounds__(kAllReduceThreads)
    AllRanksNormKernel(const __grid_constant__ OfAllRanks<AllReduceParams> params) {
  AllReduceRows<kRanks, 1, true, kTwoShot, RandomDelay>(params.rank[blockIdx.y], blockIdx.x,
                                                        gridDim.x);
}

TEST(AllReduceNorm, OneGridPlaysAllRanks) {
  for (const int ranks : {2, 4}) {
    VirtualRanks group(ranks, 16 * 8192, 2);
    for (const AllReduceMethod method : kMethods) {
      for (const Scaling scaling : kAllScalings) {
        Case test(ranks, 5, 576);
        ExpectBitsOfRmsNorm(test, scaling, [&](const auto& args) {
          OfAllRanks<AllReduceParams> params = {};
          for (int rank = 0; rank < ranks; ++rank) {
            int vectors = 0;
            cudaError_t error = cudaSuccess;
            params.rank[rank] =
                PlanAllReduceNorm({group[rank], method, args(rank)}, vectors, error);
            ASSERT_EQ(error, cudaSuccess);
            ASSERT_EQ(vectors, 1);
          }
          const bool two_shot = method == AllReduceMethod::kTwoShot;
          auto* kernel = ranks == 2
                             ? two_shot ? AllRanksNormKernel<2, true> : AllRanksNormKernel<2, false>
                         : two_shot ? AllRanksNormKernel<4, true>
                                    : AllRanksNormKernel<4, false>;
          CheckCuda(LaunchAllRanks(kernel, params, ranks, params.rank[0].ctas,
                                   params.rank[0].threads, group.stream(0)),
                    "launch");
          group.Wait();
        });
        ASSERT_TRUE(group.IsQuiet());
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(AllReduceNorm, RefusesWhatItCannotDo) {
  VirtualRanks group(2, 1024);
  Case test(2, 2, 64);
  const TestActivation out(2, 64, Scaling::kToken);
  const auto refused = [&](auto change) {
    AllReduceNormArgs args = {group[0], AllReduceMethod::kOneShot,
                              test.Args(test.residuals[0].get(), test.inputs[0].get(), out.view)};
    change(args);
    return LaunchAllReduceNorm(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([](AllReduceNormArgs& a) { a.norm.delta.data = nullptr; }));
  EXPECT_TRUE(refused([](AllReduceNormArgs& a) { a.norm.width = 60; }));
  EXPECT_TRUE(refused([](AllReduceNormArgs& a) { a.norm.tokens = 9; }));  // exceeds the slot
  EXPECT_TRUE(refused([](AllReduceNormArgs& a) { a.norm.weight += 1; }));
  EXPECT_TRUE(refused([](AllReduceNormArgs& a) { a.norm.out.scales = nullptr; }));
  EXPECT_TRUE(refused([](AllReduceNormArgs& a) { a.norm.epsilon = -1; }));
  EXPECT_TRUE(refused([](AllReduceNormArgs& a) { a.communicator.ranks = 0; }));
  const CombineArgs mixture = {};
  EXPECT_TRUE(refused([&](AllReduceNormArgs& a) { a.norm.mixture = &mixture; }));
}

}  // namespace
}  // namespace millrace::kernels
