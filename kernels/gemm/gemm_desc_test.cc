// Tests of descriptions, configs and their choice, which need no GPU.
#include "kernels/gemm/gemm_desc.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/gemm/gemm_rule.h"
#include "kernels/gemm/gemm_table.h"
#include "kernels/gemm/linear.h"
#include "kernels/gemm/linear_algorithms.h"

namespace millrace::kernels {
namespace {

using ::testing::ElementsAre;

constexpr GemmDesc kBf16 = {.rows = 28672,
                            .stride = 4096,
                            .weight = Type::kBf16,
                            .input = Type::kBf16,
                            .output = Type::kBf16,
                            .epilogue = Epilogue::kGate};
constexpr GemmDesc kFp8 = {.rows = 4096,
                           .stride = 14336,
                           .weight = Type::kFp8,
                           .weight_scaling = WeightScaling::kChannel,
                           .input = Type::kFp8,
                           .input_scaling = Scaling::kToken,
                           .output = Type::kBf16};
constexpr AlgorithmConfig kAlgorithm = {66, 393, 36, 1, 0, 2, 3, 0, 7};

GemmConfig Library(int64_t run_tokens = 0) {
  return {.kernel = kAlgorithm, .run_tokens = run_tokens};
}

TEST(GemmDescTest, PrintsAndParses) {
  EXPECT_EQ(ToString(kBf16), "28672x4096 bf16 bf16 bf16 gate");
  EXPECT_EQ(ToString(kFp8), "4096x14336 fp8/channel fp8/token bf16 store");
  GemmDesc blocks = kFp8;
  blocks.weight_scaling = WeightScaling::kBlock;
  blocks.input_scaling = Scaling::kTokenGroup;
  blocks.output = Type::kF32;
  EXPECT_EQ(ToString(blocks), "4096x14336 fp8/block fp8/group f32 store");
  for (const GemmDesc& desc : {kBf16, kFp8, blocks}) EXPECT_EQ(ParseGemmDesc(ToString(desc)), desc);
}

TEST(GemmDescTest, TakesNoOtherText) {
  for (const char* text :
       {"", "28672", "28672x4096", "28672x4096 bf16 bf16 bf16", "28672x4096 bf16 bf16 bf16 gate ",
        "28672x4096 bf16 bf16 bf16 gates", "-16x4096 bf16 bf16 bf16 gate",
        "99999999999999999999x4096 bf16 bf16 bf16 gate", "16x4096 fp8/rows fp8/token bf16 store",
        "16x4096 fp4 fp8/token bf16 store", "16 x4096 bf16 bf16 bf16 store"}) {
    EXPECT_EQ(ParseGemmDesc(text), std::nullopt) << text;
  }
}

TEST(GemmConfigTest, PrintsAndParses) {
  const GemmConfig skinny = {.kernel = sm90::SkinnyConfig{.stages = 7, .ctas = 132}};
  const GemmConfig wide = {
      .kernel = sm90::WideConfig{
          .tile = {.rows = 64, .tokens = 32, .cluster = 2}, .stages = 16, .ctas = 132}};
  const GemmConfig block = {
      .kernel = sm90::BlockConfig{.tile = {.rows = 32, .tokens = 64}, .stages = 16, .ctas = 132}};
  EXPECT_EQ(ToString(Library()), "cublaslt:66,393,36,1,0,2,3,0,7");
  EXPECT_EQ(ToString(Library(64)), "cublaslt:66,393,36,1,0,2,3,0,7@64");
  EXPECT_EQ(ToString(skinny), "skinny:7,132");
  EXPECT_EQ(ToString(wide), "wide:64,32,2,16,132");
  EXPECT_EQ(ToString(block), "block:32,64,16,132");
  for (const GemmConfig& config : {Library(), Library(64), skinny, wide, block}) {
    EXPECT_EQ(ParseGemmConfig(ToString(config)), config);
  }
  const GemmRanges ranges = {{16, skinny}, {64, wide}, {96, Library(128)}};
  EXPECT_EQ(ToString(ranges),
            "16=skinny:7,132 64=wide:64,32,2,16,132 96=cublaslt:66,393,36,1,0,2,3,0,7@128");
  EXPECT_EQ(ParseGemmRanges(ToString(ranges)), ranges);
}

TEST(GemmConfigTest, TakesNoOtherText) {
  for (const char* text :
       {"", "skinny", "skinny:", "skinny:7", "skinny:7,132,1", "skinny:7,", "skinny:7,-1",
        "skinny:7,132@64", "skinny:7,65536", "cublaslt:66,393,36,1,0,2,3,0",
        "cublaslt:66,393,36,1,0,2,3,0,7@", "cublaslt:66,393,36,1,0,2,3,0,7@0",
        "cublaslt:66,393,36,1,0,2,3,0,7@x", "cublaslt:66,393,36,1,0,2,3,0,70000", "wide:64,32,2,16",
        "narrow:1,2", ":1,2", "block:32,64,16,0x10"}) {
    EXPECT_EQ(ParseGemmConfig(text), std::nullopt) << text;
  }
  for (const char* text : {"", "16", "16=", "=skinny:7,132", "16=skinny:7,132 16=skinny:7,132",
                           "16=skinny:7,132 8=skinny:7,132", "0=skinny:7,132",
                           "16=skinny:7,132  32=skinny:7,132", "x=skinny:7,132"}) {
    EXPECT_EQ(ParseGemmRanges(text), std::nullopt) << text;
  }
}

// Rules of Llama-3-8B's shapes on an H200's 132 SMs.
TEST(GemmRuleTest, TakesSmallTilesWhereOutputsAreFew) {
  const auto rule = [](GemmDesc desc, int64_t tokens) {
    const auto config = HeuristicConfig(desc, tokens, 132);
    return config.has_value() ? ToString(*config) : "cublaslt";
  };
  EXPECT_EQ(rule(kBf16, 1), "skinny:9,132");
  EXPECT_EQ(rule(kFp8, 16), "skinny:7,132");
  EXPECT_EQ(rule(kBf16, 32), "wide:112,32,1,16,132");
  EXPECT_EQ(rule(kFp8, 32), "wide:64,32,1,16,132");
  EXPECT_EQ(rule(kFp8, 64), "wide:64,32,2,16,132");
  EXPECT_EQ(rule(kFp8, 128), "wide:64,64,2,16,132");
  EXPECT_EQ(rule(kBf16, 128), "wide:112,128,1,16,132");
  EXPECT_EQ(rule(kBf16, 129), "cublaslt");
  GemmDesc head = kBf16;
  head.output = Type::kF32;
  EXPECT_EQ(rule(head, 32), "wide:112,32,1,16,132");
  EXPECT_EQ(rule(head, 33), "cublaslt");
  GemmDesc blocks = kFp8;
  blocks.weight_scaling = WeightScaling::kBlock;
  blocks.input_scaling = Scaling::kTokenGroup;
  EXPECT_EQ(rule(blocks, 16), "skinny:7,132");
  EXPECT_EQ(rule(blocks, 64), "block:32,64,16,132");
  EXPECT_EQ(rule(blocks, 256), "block:64,128,16,132");
  EXPECT_EQ(rule(blocks, 257), "cublaslt");
}

TEST(GemmTableTest, ParsesAndIsExactWhereItSaysSo) {
  for (const TableRow& row : GemmTable()) {
    SCOPED_TRACE(row.desc);
    const auto desc = ParseGemmDesc(row.desc);
    const auto ranges = ParseGemmRanges(row.ranges);
    ASSERT_TRUE(desc.has_value() && ranges.has_value());
    EXPECT_EQ(FindInTable(*desc, row.exact), ranges);
    for (const GemmRange& range : *ranges) {
      const auto* const algorithm = std::get_if<AlgorithmConfig>(&range.config.kernel);
      if (algorithm != nullptr && row.exact) {
        EXPECT_TRUE(IsExact(*algorithm)) << ToString(range.config);
      }
      EXPECT_TRUE(range.config.run_tokens == 0 || range.config.run_tokens >= range.tokens);
    }
  }
  GemmDesc unknown = kBf16;
  unknown.rows += 16;
  EXPECT_EQ(FindInTable(unknown, true), std::nullopt);
}

std::vector<TimedRange> Timed(const std::vector<std::pair<int64_t, double>>& times) {
  std::vector<TimedRange> ranges;
  for (const auto& [tokens, time] : times) {
    GemmConfig config = Library();
    std::get<AlgorithmConfig>(config.kernel).tile = static_cast<uint16_t>(tokens);
    ranges.push_back({.range = {.tokens = tokens, .config = config}, .time = time});
  }
  return ranges;
}

// Returns for each range the tile, which tells whose config it has, and the rows.
std::vector<std::pair<int, int64_t>> Monotone(std::vector<TimedRange> ranges,
                                              int64_t (*capacity)(int64_t)) {
  MakeMonotone(&ranges, capacity);
  std::vector<std::pair<int, int64_t>> result;
  for (const TimedRange& one : ranges) {
    result.emplace_back(std::get<AlgorithmConfig>(one.range.config.kernel).tile,
                        one.range.config.run_tokens);
  }
  return result;
}

TEST(MakeMonotoneTest, TakesALargerRangesConfigWhereThatIsFaster) {
  using Pair = std::pair<int, int64_t>;
  const auto all = [](int64_t) { return int64_t{1024}; };
  EXPECT_THAT(Monotone(Timed({{192, 20}, {224, 30}, {256, 18}}), all),
              ElementsAre(Pair(256, 256), Pair(256, 256), Pair(256, 0)));
  // The fastest of several.
  EXPECT_THAT(Monotone(Timed({{64, 20}, {96, 18}, {128, 15}, {160, 16}}), all),
              ElementsAre(Pair(128, 128), Pair(128, 128), Pair(128, 0), Pair(160, 0)));
  // Where both are as fast the larger one's config makes sure that they stay so.
  EXPECT_THAT(Monotone(Timed({{64, 20}, {128, 20.1}, {256, 20.5}}), all),
              ElementsAre(Pair(128, 128), Pair(128, 0), Pair(256, 0)));
  EXPECT_THAT(Monotone(Timed({{64, 10}, {128, 20}}), all), ElementsAre(Pair(64, 0), Pair(128, 0)));
}

TEST(MakeMonotoneTest, StaysWithinTheCapacityOfTheFirstTokens) {
  using Pair = std::pair<int, int64_t>;
  // 65 tokens have 128 rows, 129 have 256, 257 have 320.
  EXPECT_THAT(Monotone(Timed({{64, 20}, {96, 20}, {128, 20}, {256, 10}, {320, 5}}), LinearCapacity),
              ElementsAre(Pair(64, 0), Pair(128, 128), Pair(128, 0), Pair(256, 0), Pair(320, 0)));
  EXPECT_THAT(
      Monotone(Timed({{64, 20}, {96, 20}, {128, 12}, {192, 14}, {256, 10}}), LinearCapacity),
      ElementsAre(Pair(64, 0), Pair(128, 128), Pair(128, 0), Pair(256, 256), Pair(256, 0)));
}

// Our own kernels compute the tokens alone, whatever the tile: they need no capacity.
TEST(MakeMonotoneTest, TakesALargerTileOfOurOwn) {
  std::vector<TimedRange> ranges = Timed({{64, 20}, {128, 10}});
  ranges[1].range.config.kernel =
      sm90::WideConfig{.tile = {.rows = 64, .tokens = 64, .cluster = 2}, .stages = 16, .ctas = 132};
  MakeMonotone(&ranges, [](int64_t tokens) { return tokens; });
  EXPECT_EQ(ranges[0].range.config, ranges[1].range.config);
  EXPECT_EQ(ranges[0].range.tokens, 64);
}

TEST(CapacityTest, IsABoundOfRangesAndEnough) {
  for (int64_t tokens = 1; tokens <= 9000; ++tokens) {
    ASSERT_GE(LinearCapacity(tokens), tokens);
    ASSERT_GE(LinearCapacity(tokens + 1), LinearCapacity(tokens));
    ASSERT_EQ(LinearCapacity(LinearCapacity(tokens)), LinearCapacity(tokens));
  }
}

}  // namespace
}  // namespace millrace::kernels
