#include "kernels/gemm/sm90/dense/block_linear.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "kernels/elementwise/quantize.h"
#include "kernels/gemm/sm90/dense/block_launch.cuh"
#include "kernels/gemm/sm90/own_linear_test_util.h"

namespace millrace::kernels::sm90 {
namespace {

struct BlockLinear {
  using Args = BlockLinearArgs;
  using Config = BlockConfig;
  static constexpr int64_t kMostTokens = kMaxBlockTokens;

  // Every tile, with a pipeline and a grid as small and as large as may be.
  static std::vector<BlockConfig> Configs(int64_t /*tokens*/) {
    std::vector<BlockConfig> configs;
    for (const BlockInstance& instance : BlockInstances<NoDelay>()) {
      configs.push_back({.tile = instance.tile, .stages = 2, .ctas = 7});
      configs.push_back({.tile = instance.tile, .stages = 16, .ctas = 1000});
    }
    return configs;
  }
  static std::string Describe(const BlockConfig& config) {
    return std::to_string(config.tile.rows) + " x " + std::to_string(config.tile.tokens) + ", " +
           std::to_string(config.stages) + " stages";
  }
  template <typename Delay>
  static cudaError_t Launch(const BlockLinearArgs& args, cudaStream_t stream) {
    return LaunchBlock<Delay>(args, stream);
  }
};

TEST(BlockLinearTest, GivesTheBitsOfCublasLt) {
  const auto expect = [](const Form& form, int64_t rows, int64_t stride,
                         const std::vector<int64_t>& counts) {
    ExpectBitsOfCublasLt<BlockLinear, NoDelay>(form, rows, stride, rows + 8, counts);
  };
  for (const Form& form : BlockForms()) {
    expect(form, 576, 640, {5, 17, 64, 65, 99, 128, 130, 191, 255});
    expect(form, 16, 128, {1, 77, 256});
    expect(form, 1072, 1536, {24, 57, 129, 256});
    expect(form, 4096, 4096, {32, 128, 256});
    expect(form, 1024, 14336, {30, 105, 200});
  }
}

TEST(BlockLinearTest, WaitsForWhatItNeeds) {
  ExpectBitsOfCublasLt<BlockLinear, RandomDelay>(BlockForms()[0], 1072, 4096, 1072, {30, 100, 200},
                                                 3);
}

// Kernels that are set up while the one before them runs: products, and their quantization for the
// next one, into what that one read.
TEST(BlockLinearTest, KeepsTheOrderOfAChain) {
  constexpr int kSize = 2048, kTokens = 200;
  constexpr int kPairs = 10;  // values grow by 4 each time
  Problem problem(BlockForms()[0], kSize, kSize, kTokens, kSize);
  const std::vector<uint8_t> input = problem.input().Download();
  const std::vector<float> scales = problem.input_scales().Download();
  const auto configs = BlockLinear::Configs(kTokens);
  auto args = ArgsOf<BlockLinear>(problem, BlockForms()[0], kTokens, configs[0]);
  cudaStream_t stream;
  CheckCuda(cudaStreamCreate(&stream), "stream");
  const auto chain = [&](bool apart, auto delay) {
    problem.input().Upload(input);
    problem.input_scales().Upload(scales);
    CheckCuda(cudaDeviceSynchronize(), "upload");
    for (int i = 0; i < kPairs; ++i) {
      args.config = configs[i % configs.size()];
      EXPECT_EQ(LaunchBlock<decltype(delay)>(args, stream), cudaSuccess);
      if (apart) CheckCuda(cudaStreamSynchronize(stream), "apart");
      CheckCuda(LaunchQuantize({.in = static_cast<const Bf16*>(args.output),
                                .in_stride = kSize,
                                .tokens = kTokens,
                                .width = kSize,
                                .out = args.input},
                               stream),
                "quantize");
      if (apart) CheckCuda(cudaStreamSynchronize(stream), "apart");
    }
    CheckCuda(cudaStreamSynchronize(stream), "chain");
    return std::pair(problem.input().Download(), problem.output().Download());
  };
  const auto expected = chain(true, NoDelay());
  for (int repeat = 0; repeat < 5; ++repeat) {
    EXPECT_TRUE(chain(false, NoDelay()) == expected);
    EXPECT_TRUE(chain(false, RandomDelay()) == expected);
  }
  CheckCuda(cudaStreamDestroy(stream), "stream");
}

TEST(BlockLinearTest, RefusesWhatItCannotRun) {
  const Form form = BlockForms()[0];
  Problem problem(form, 576, 640, 16, 576);
  const auto refused = [&](auto change) {
    BlockLinearArgs args = ArgsOf<BlockLinear>(problem, form, 16, BlockLinear::Configs(16).front());
    change(args);
    return LaunchBlockLinear(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_FALSE(refused([](BlockLinearArgs&) {}));
  EXPECT_TRUE(refused([](BlockLinearArgs& args) { args.config.tile.rows = 48; }));
  EXPECT_TRUE(refused([](BlockLinearArgs& args) { args.config.tile.tokens = 16; }));
  EXPECT_TRUE(refused([](BlockLinearArgs& args) { args.config.stages = 1; }));
  EXPECT_TRUE(refused([](BlockLinearArgs& args) { args.config.ctas = 0; }));
  EXPECT_TRUE(refused([](BlockLinearArgs& args) { args.tokens = kMaxBlockTokens + 1; }));
  EXPECT_TRUE(refused([](BlockLinearArgs& args) { args.input.scaling = Scaling::kToken; }));
  EXPECT_TRUE(refused([](BlockLinearArgs& args) {
    args.weight.scaling = WeightScaling::kChannel;
    args.input.scaling = Scaling::kToken;
  }));
  EXPECT_TRUE(refused([](BlockLinearArgs& args) { args.weight.scales += 1; }));
  EXPECT_TRUE(refused([](BlockLinearArgs& args) { args.input.scales += 1; }));
}

}  // namespace
}  // namespace millrace::kernels::sm90
