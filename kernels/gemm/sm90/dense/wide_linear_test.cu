#include "kernels/gemm/sm90/dense/wide_linear.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/gemm/sm90/dense/wide_launch.cuh"
#include "kernels/gemm/sm90/own_linear_test_util.h"

namespace millrace::kernels::sm90 {
namespace {

struct WideLinear {
  using Args = WideLinearArgs;
  using Config = WideConfig;
  static constexpr int64_t kMostTokens = kMaxWideTokens;

  // Every tile that has capacity for them, with a pipeline and a grid as small and as large as may
  // be; of those for many more tokens, a few.
  static std::vector<WideConfig> Configs(int64_t tokens) {
    std::vector<WideConfig> configs;
    for (const WideInstance& instance : WideInstances<Type::kFp8, NoDelay>()) {
      const WideTile& tile = instance.tile;
      const int capacity = tile.tokens * tile.cluster;
      if (tokens > capacity || (capacity > 32 && tokens <= capacity / 8)) continue;
      configs.push_back({.tile = tile, .stages = 2, .ctas = 7});
      configs.push_back({.tile = tile, .stages = 16, .ctas = 1000});
    }
    return configs;
  }
  static std::string Describe(const WideConfig& config) {
    return std::to_string(config.tile.rows) + " x " + std::to_string(config.tile.tokens) + " x " +
           std::to_string(config.tile.cluster) + ", " + std::to_string(config.stages) + " stages";
  }
  template <typename Delay>
  static cudaError_t Launch(const WideLinearArgs& args, cudaStream_t stream) {
    return LaunchWide<Delay>(args, stream);
  }
};

TEST(WideLinearTest, GivesTheBitsOfCublasLt) {
  const auto expect = [](const Form& form, int64_t rows, int64_t stride,
                         const std::vector<int64_t>& counts) {
    ExpectBitsOfCublasLt<WideLinear, NoDelay>(form, rows, stride, rows + 8, counts);
  };
  for (const Form& form : BlockForms(false)) {
    expect(form, 576, 640, {5, 17, 25, 32, 33, 50, 64, 65, 99, 127});
    expect(form, 16, 128, {1, 31, 77, 128});
    expect(form, 1072, 1536, {24, 57, 128});
    expect(form, 4096, 4096, {32, 64, 128});
    expect(form, 1024, 14336, {30, 45, 105});
  }
}

TEST(WideLinearTest, WaitsForWhatItNeeds) {
  for (const Form& form : {kForms[0], kForms[3]}) {
    ExpectBitsOfCublasLt<WideLinear, RandomDelay>(form, 1072, 4096, 1072, {30, 60, 100}, 3);
  }
}

TEST(WideLinearTest, KeepsTheOrderOfAChain) {
  for (const int64_t tokens : {24, 60, 100}) ExpectOrderOfAChain<WideLinear>(tokens);
}

TEST(WideLinearTest, GatesAsTheKernelForItDoes) {
  for (const Form& form : GatedForms()) {
    ExpectGate<WideLinear, NoDelay>(form, 384, 640, {17, 25, 32, 33, 64, 65, 99, 128});
    ExpectGate<WideLinear, RandomDelay>(form, 1664, 4096, {30, 60, 100});
  }
}

TEST(WideLinearTest, RefusesWhatItCannotRun) {
  ExpectRefusals<WideLinear>({
      [](WideConfig& config) { config.tile.rows = 80; },
      [](WideConfig& config) { config.tile.tokens = 16; },
      [](WideConfig& config) { config.tile.cluster = 3; },
      [](WideConfig& config) { config.stages = 1; },
      [](WideConfig& config) { config.ctas = 0; },
  });
}

}  // namespace
}  // namespace millrace::kernels::sm90
