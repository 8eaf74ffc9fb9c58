#include "kernels/gemm/sm90/wide_linear.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gemm/linear_test_util.h"
#include "kernels/gemm/sm90/wide_launch.cuh"
#include "kernels/launch.cuh"
#include "kernels/test_util.h"

namespace millrace::kernels::sm90 {
namespace {

// Up to some thousand cycles, otherwise each time; the clock tells the times and SMs apart.
struct RandomDelay {
  __device__ static void Wait() {
    uint32_t bits = static_cast<uint32_t>(clock64()) * 0x9e3779b9u + blockIdx.x * 0x85ebca6bu +
                    threadIdx.x / kWarpSize * 0xc2b2ae35u;
    bits ^= bits >> 15;
    if (bits % 4 == 0) __nanosleep(bits / 4 % 4096);
  }
};

// Every tile that has room for `tokens`, with a ring and a grid as small and as large as may be.
std::vector<WideChoice> Choices(int64_t tokens) {
  std::vector<WideChoice> choices;
  for (const WideInstance& instance : WideInstances<Type::kFp8, NoDelay>()) {
    const WideTile& tile = instance.tile;
    const int room = tile.tokens * tile.cluster;
    if (tokens > room || (room > 32 && tokens <= room / 8)) continue;
    choices.push_back({.tile = tile, .stages = 2, .ctas = 7});
    choices.push_back({.tile = tile, .stages = 16, .ctas = 1000});
  }
  return choices;
}

WideLinearArgs ArgsOf(Problem& problem, const Form& form, int64_t tokens,
                      const WideChoice& choice) {
  const LinearArgs args = problem.Args(nullptr, tokens);
  return {.choice = choice,
          .weight = args.weight,
          .input = args.input,
          .tokens = tokens,
          .output = args.output,
          .output_type = form.output,
          .output_stride = args.output_stride,
          .ticket = args.ticket};
}

std::string Describe(const Form& form, int64_t tokens, const WideChoice& choice) {
  return std::string(form.name) + ", " + std::to_string(tokens) + " tokens, " +
         std::to_string(choice.tile.rows) + " x " + std::to_string(choice.tile.tokens) + " x " +
         std::to_string(choice.tile.cluster) + ", " + std::to_string(choice.stages) + " stages";
}

bool Runs(const Form& form) { return form.weight != WeightScaling::kBlock; }

// The whole output, poisoned before, of a launch.
template <typename Delay>
std::vector<uint8_t> Launched(Problem& problem, const WideLinearArgs& args) {
  problem.output().Poison();
  CheckCuda(cudaDeviceSynchronize(), "poison");
  EXPECT_EQ(LaunchWide<Delay>(args, nullptr), cudaSuccess);
  return problem.output().Download();
}

// Outputs that cuBLASLt wrote for `tokens` tokens, and poison everywhere else.
std::vector<uint8_t> Expected(Problem& problem, const LinearPlan* plan, int64_t tokens) {
  std::vector<uint8_t> bytes;
  EXPECT_EQ(problem.Run(plan, tokens, &bytes), cudaSuccess);
  bytes.resize(problem.output().size(), 0xff);
  return bytes;
}

void ExpectBitsOfCublasLt(const Form& form, int64_t rows, int64_t stride,
                          const std::vector<int64_t>& counts) {
  SCOPED_TRACE(testing::Message() << rows << " x " << stride);
  LinearPlanner planner(Library(), {.gemm = Gemm::kCublasLt});
  const LinearPlan* const plan = Plan(&planner, form.Shape(rows, stride));
  ASSERT_NE(plan, nullptr);
  Problem problem(form, rows, stride, kMostWideTokens, rows + 8);
  for (const int64_t tokens : counts) {
    const std::vector<uint8_t> expected = Expected(problem, plan, tokens);
    for (const WideChoice& choice : Choices(tokens)) {
      const WideLinearArgs args = ArgsOf(problem, form, tokens, choice);
      EXPECT_TRUE(Launched<NoDelay>(problem, args) == expected) << Describe(form, tokens, choice);
    }
  }
  EXPECT_TRUE(problem.GuardsIntact());
}

// What is compared is the whole output: poison behind the rows and behind the tokens, too.
TEST(WideLinearTest, GivesTheBitsOfCublasLt) {
  for (const Form& form : kForms) {
    if (!Runs(form)) continue;
    ExpectBitsOfCublasLt(form, 576, 640, {5, 17, 25, 32, 33, 50, 64, 65, 99, 127});
    ExpectBitsOfCublasLt(form, 16, 128, {1, 31, 77, 128});
    ExpectBitsOfCublasLt(form, 1072, 1536, {24, 57, 128});
    ExpectBitsOfCublasLt(form, 4096, 4096, {32, 64, 128});
    ExpectBitsOfCublasLt(form, 1024, 14336, {30, 45, 105});
  }
}

TEST(WideLinearTest, WaitsForWhatItNeeds) {
  for (const Form& form : {kForms[0], kForms[3]}) {
    LinearPlanner planner(Library(), {.gemm = Gemm::kCublasLt});
    const LinearPlan* const plan = Plan(&planner, form.Shape(1072, 4096));
    ASSERT_NE(plan, nullptr);
    Problem problem(form, 1072, 4096, kMostWideTokens, 1072);
    for (const int64_t tokens : {30, 60, 100}) {
      const std::vector<uint8_t> expected = Expected(problem, plan, tokens);
      for (const WideChoice& choice : Choices(tokens)) {
        const WideLinearArgs args = ArgsOf(problem, form, tokens, choice);
        for (int repeat = 0; repeat < 3; ++repeat) {
          ASSERT_TRUE(Launched<RandomDelay>(problem, args) == expected)
              << Describe(form, tokens, choice);
        }
      }
    }
  }
}

// Kernels that are set up while the one before them runs: each reads what that one wrote, into what
// the one before that read.
TEST(WideLinearTest, KeepsTheOrderOfAChain) {
  constexpr int64_t kSize = 2048, kTokens = 24;
  const std::vector<WideChoice> choices = Choices(kTokens);
  constexpr int kLaunches = 20;  // values grow by 26 each time
  const Form& form = kForms[0];
  Problem problem(form, kSize, kSize, kTokens, kSize);
  DeviceBuffer<uint8_t> other(problem.input().size());
  cudaStream_t stream;
  CheckCuda(cudaStreamCreate(&stream), "stream");
  const std::vector<uint8_t> input = problem.input().Download();
  const auto chain = [&](bool apart, auto delay) {
    problem.input().Upload(input);
    CheckCuda(cudaDeviceSynchronize(), "upload");
    for (int i = 0; i < kLaunches; ++i) {
      WideLinearArgs args = ArgsOf(problem, form, kTokens, choices[i % choices.size()]);
      args.output = other.get();
      if (i % 2 != 0) std::swap(args.input.data, args.output);
      EXPECT_EQ(LaunchWide<decltype(delay)>(args, stream), cudaSuccess);
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

TEST(WideLinearTest, RefusesWhatItCannotRun) {
  const Form& form = kForms[3];
  Problem problem(form, 576, 640, 32, 576);
  const auto refused = [&](auto change) {
    WideLinearArgs args = ArgsOf(problem, form, 32, Choices(32)[0]);
    change(args);
    return LaunchWideLinear(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_FALSE(refused([](WideLinearArgs&) {}));
  EXPECT_TRUE(refused([](WideLinearArgs& args) { args.choice.tile.rows = 80; }));
  EXPECT_TRUE(refused([](WideLinearArgs& args) { args.choice.stages = 1; }));
  EXPECT_TRUE(refused([](WideLinearArgs& args) { args.choice.ctas = 0; }));
  EXPECT_TRUE(refused([](WideLinearArgs& args) { args.ticket = nullptr; }));
  EXPECT_TRUE(refused([](WideLinearArgs& args) { args.tokens = 0; }));
  EXPECT_TRUE(refused([](WideLinearArgs& args) { args.tokens = 65; }));
  EXPECT_TRUE(refused([](WideLinearArgs& args) { args.weight.rows = 568; }));
  EXPECT_TRUE(refused([](WideLinearArgs& args) { args.weight.type = Type::kBf16; }));
  EXPECT_TRUE(refused([](WideLinearArgs& args) { args.weight.scales = nullptr; }));
  EXPECT_TRUE(refused([](WideLinearArgs& args) { args.weight.scaling = WeightScaling::kBlock; }));
  EXPECT_TRUE(refused([](WideLinearArgs& args) { args.input.scaling = Scaling::kTokenGroup; }));
  EXPECT_TRUE(refused([](WideLinearArgs& args) { args.input.stride = 768; }));
  EXPECT_TRUE(refused([](WideLinearArgs& args) { args.output_stride = 568; }));
  EXPECT_TRUE(refused([](WideLinearArgs& args) { args.output_type = Type::kFp8; }));
  EXPECT_TRUE(
      refused([](WideLinearArgs& args) { args.output = static_cast<uint8_t*>(args.output) + 8; }));
}

}  // namespace
}  // namespace millrace::kernels::sm90
