// For the tests of our own linears on Hopper, which promise the same; for .cu files. A `Kernel` has
//   Args, Config                          its launch's
//   kMostTokens
//   Configs(tokens)                       to test with so many
//   Describe(config)
//   Launch<Delay>(args, stream)
#ifndef MILLRACE_KERNELS_GEMM_SM90_OWN_LINEAR_TEST_UTIL_H_
#define MILLRACE_KERNELS_GEMM_SM90_OWN_LINEAR_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/delay.cuh"
#include "kernels/elementwise/gated_activation.h"
#include "kernels/gemm/linear_test_util.h"
#include "kernels/gemm/sm90/own_linear.h"
#include "kernels/test_util.h"

namespace millrace::kernels::sm90 {

template <typename Kernel>
typename Kernel::Args ArgsOf(Problem& problem, const Form& form, int64_t tokens,
                             const typename Kernel::Config& config) {
  const LinearArgs args = problem.Args(nullptr, tokens);
  return {OwnLinear{.weight = args.weight,
                    .input = args.input,
                    .tokens = tokens,
                    .output = args.output,
                    .output_type = form.output,
                    .output_stride = args.output_stride,
                    .tile_counter = args.tile_counter},
          config};
}

// The whole output, poisoned before, of a launch.
template <typename Kernel, typename Delay>
std::vector<uint8_t> Launched(Problem& problem, const typename Kernel::Args& args) {
  problem.output().Poison();
  CheckCuda(cudaDeviceSynchronize(), "poison");
  EXPECT_EQ(Kernel::template Launch<Delay>(args, nullptr), cudaSuccess);
  return problem.output().Download();
}

// Expects outputs to be cuBLASLt's, and poison everywhere else, with every config and `repeats`
// times.
template <typename Kernel, typename Delay>
void ExpectBitsOfCublasLt(const Form& form, int64_t rows, int64_t stride, int64_t output_stride,
                          const std::vector<int64_t>& counts, int repeats = 1) {
  SCOPED_TRACE(testing::Message() << form.name << ", " << rows << " x " << stride);
  LinearPlanner planner(Library(), {.gemm = Gemm::kCublasLt});
  const LinearPlan* const plan = Plan(&planner, form.Desc(rows, stride));
  ASSERT_NE(plan, nullptr);
  Problem problem(form, rows, stride, Kernel::kMostTokens, output_stride);
  for (const int64_t tokens : counts) {
    std::vector<uint8_t> expected;
    ASSERT_EQ(problem.Run(plan, tokens, &expected), cudaSuccess);
    expected.resize(problem.output().size(), 0xff);
    for (const auto& config : Kernel::Configs(tokens)) {
      for (int repeat = 0; repeat < repeats; ++repeat) {
        const auto args = ArgsOf<Kernel>(problem, form, tokens, config);
        ASSERT_TRUE((Launched<Kernel, Delay>(problem, args) == expected))
            << tokens << " tokens, " << Kernel::Describe(config);
      }
    }
  }
  EXPECT_TRUE(problem.GuardsIntact());
}

// Expects outputs of a gated linear to be those of the gate's own kernel, and poison everywhere
// else, with every config.
template <typename Kernel, typename Delay>
void ExpectGate(const Form& form, int64_t size, int64_t stride,
                const std::vector<int64_t>& counts) {
  constexpr float kScale = 0.01f;
  Problem problem(form, 2 * size, stride, Kernel::kMostTokens, 2 * size);
  const DeviceBuffer<float> scale(std::vector<float>{kScale});
  DeviceBuffer<uint8_t> data(Kernel::kMostTokens * size * sizeof(Bf16));
  const auto left = [&](cudaError_t launched) {
    EXPECT_EQ(launched, cudaSuccess);
    EXPECT_TRUE(data.GuardsIntact());
    return data.Download();
  };
  for (const Activation& gated :
       {Bf16Rows(reinterpret_cast<Bf16*>(data.get()), size),
        Activation{data.get(), Type::kFp8, Scaling::kTensor, size, scale.get()}}) {
    for (const int64_t tokens : counts) {
      SCOPED_TRACE(testing::Message() << form.name << ", " << size << " x " << stride << ", "
                                      << tokens << " tokens, FP8 " << (gated.type == Type::kFp8));
      const auto configs = Kernel::Configs(tokens);
      auto args = ArgsOf<Kernel>(problem, form, tokens, configs[0]);
      ASSERT_EQ(Kernel::template Launch<Delay>(args, nullptr), cudaSuccess);
      data.Poison();
      const std::vector<uint8_t> expected =
          left(LaunchGatedActivation({.gate_up = LinearProduct(problem.Args(nullptr, tokens)),
                                      .tokens = static_cast<int>(tokens),
                                      .size = static_cast<int>(size),
                                      .out = gated,
                                      .layout = GateLayout::kInterleaved},
                                     nullptr));
      EXPECT_GT(std::set<uint8_t>(expected.begin(), expected.end()).size(), 50);
      args.output = nullptr;
      args.gated = gated;
      for (const auto& config : configs) {
        args.config = config;
        data.Poison();
        ASSERT_TRUE((left(Kernel::template Launch<Delay>(args, nullptr)) == expected))
            << Kernel::Describe(config);
      }
    }
  }
}

// Kernels that are set up while the one before them runs: each reads what that one wrote, into what
// the one before that read.
template <typename Kernel>
void ExpectOrderOfAChain(int64_t tokens) {
  constexpr int64_t kSize = 2048;
  constexpr int kLaunches = 20;  // values grow by 26 each time
  const Form& form = kForms[0];
  const auto configs = Kernel::Configs(tokens);
  Problem problem(form, kSize, kSize, tokens, kSize);
  DeviceBuffer<uint8_t> other(problem.input().size());
  cudaStream_t stream;
  CheckCuda(cudaStreamCreate(&stream), "stream");
  const std::vector<uint8_t> input = problem.input().Download();
  const auto chain = [&](bool apart, auto delay) {
    problem.input().Upload(input);
    CheckCuda(cudaDeviceSynchronize(), "upload");
    for (int i = 0; i < kLaunches; ++i) {
      auto args = ArgsOf<Kernel>(problem, form, tokens, configs[i % configs.size()]);
      args.output = other.get();
      if (i % 2 != 0) std::swap(args.input.data, args.output);
      EXPECT_EQ(Kernel::template Launch<decltype(delay)>(args, stream), cudaSuccess);
      if (apart) CheckCuda(cudaStreamSynchronize(stream), "apart");
    }
    CheckCuda(cudaStreamSynchronize(stream), "chain");
    return std::pair(problem.input().Download(), other.Download());
  };
  const auto expected = chain(true, NoDelay());
  for (int repeat = 0; repeat < 5; ++repeat) {
    EXPECT_TRUE(chain(false, NoDelay()) == expected);
    EXPECT_TRUE(chain(false, RandomDelay()) == expected);
  }
  CheckCuda(cudaStreamDestroy(stream), "stream");
}

// `change_configs`: what makes a config for 16 tokens one that must be refused.
template <typename Kernel>
void ExpectRefusals(const std::vector<void (*)(typename Kernel::Config&)>& change_configs) {
  using Args = typename Kernel::Args;
  const Form& form = kForms[3];
  Problem problem(form, 576, 640, 16, 576);
  const auto refused = [&](auto change) {
    Args args = ArgsOf<Kernel>(problem, form, 16, Kernel::Configs(16)[0]);
    change(args);
    return Kernel::template Launch<NoDelay>(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_FALSE(refused([](Args&) {}));
  for (const auto& change : change_configs) {
    EXPECT_TRUE(refused([&](Args& args) { change(args.config); }));
  }
  EXPECT_TRUE(refused([](Args& args) { args.tile_counter = nullptr; }));
  EXPECT_TRUE(refused([](Args& args) { args.tokens = 0; }));
  EXPECT_TRUE(refused([](Args& args) { args.tokens = Kernel::kMostTokens + 1; }));
  EXPECT_TRUE(refused([](Args& args) { args.weight.rows = 568; }));
  EXPECT_TRUE(refused([](Args& args) { args.weight.type = Type::kBf16; }));
  EXPECT_TRUE(refused([](Args& args) { args.weight.scales = nullptr; }));
  EXPECT_TRUE(refused([](Args& args) { args.weight.scaling = WeightScaling::kBlock; }));
  EXPECT_TRUE(refused([](Args& args) { args.input.scaling = Scaling::kTokenGroup; }));
  EXPECT_TRUE(refused([](Args& args) { args.input.stride = 768; }));
  EXPECT_TRUE(refused([](Args& args) { args.output_stride = 568; }));
  EXPECT_TRUE(refused([](Args& args) { args.output_type = Type::kFp8; }));
  EXPECT_TRUE(refused([](Args& args) { args.output = static_cast<uint8_t*>(args.output) + 8; }));
  // A gate of inputs with a scale each.
  EXPECT_TRUE(refused([](Args& args) {
    args.gated = Bf16Rows(static_cast<Bf16*>(std::exchange(args.output, nullptr)), 288);
  }));
}

// Forms with block scales, and without.
inline std::vector<Form> BlockForms(bool blocks = true) {
  std::vector<Form> forms;
  for (const Form& form : kForms) {
    if ((form.weight == WeightScaling::kBlock) == blocks) forms.push_back(form);
  }
  return forms;
}

// Those that may end in a gate.
inline std::vector<Form> GatedForms() {
  std::vector<Form> forms;
  for (const Form& form : kForms) {
    if (IsKnown(form.input) && form.output == Type::kBf16) forms.push_back(form);
  }
  return forms;
}

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_OWN_LINEAR_TEST_UTIL_H_
