// Tests what a grouped linear's bits depend on, and which other results they equal.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "kernels/elementwise/quantize.h"
#include "kernels/gemm/four_bit.h"
#include "kernels/gemm/grouped_linear.h"
#include "kernels/gemm/grouped_test_util.h"
#include "kernels/gemm/sm90/dense/skinny_linear.h"
#include "kernels/gemm/sm90/grouped/grouped_launch.cuh"
#include "kernels/gemm/sm90/grouped/grouped_run_test_util.h"
#include "kernels/gemm/sm90/grouped/prompt_launch.cuh"
#include "kernels/test_util.h"

namespace millrace::kernels::sm90 {
namespace {

// A pair's bits: alone, in any order, at every number of tokens and tile, whatever the others do.
TEST(GroupedBitsTest, BitsDependOnTheRowAlone) {
  constexpr int kGroups = 6, kTokens = 300, kSlots = 2;
  constexpr int64_t kRows = 192, kColumns = 640;
  for (const GroupedForm& form : kGroupedForms) {
    SCOPED_TRACE(form.name);
    const GroupedProblem problem(form, kGroups, kRows, kColumns, kTokens, true);
    const auto run_of = [&](const std::vector<int32_t>& ids, int tile) {
      return GroupedRun{.problem = &problem,
                        .ids = ids,
                        .groups = kGroups,
                        .tokens = kTokens,
                        .slots = kSlots,
                        .gate = GroupedGate::kSilu,
                        .output_stride = 128,
                        .tile = tile}
          .Values<uint16_t>();
    };
    const std::vector<int32_t> ids = RandomIds(kTokens, kSlots, kGroups, 3);
    const std::vector<uint16_t> all = run_of(ids, 8);
    for (const int tile : TilesOf(form)) ASSERT_TRUE(run_of(ids, tile) == all) << "tile " << tile;

    for (const int pair : {0, 7, 256, 599}) {  // alone
      std::vector<int32_t> own(ids.size(), -1);
      own[pair] = ids[pair];
      for (const int tile : TilesOf(form)) {
        const std::vector<uint16_t> alone = run_of(own, tile);
        EXPECT_TRUE(std::equal(alone.begin() + pair * 128, alone.begin() + (pair + 1) * 128,
                               all.begin() + pair * 128))
            << "pair " << pair << ", tile " << tile;
        EXPECT_TRUE(IsPoison(alone.data(), pair * 128));
      }
    }

    // All others go to one group; every pair that stays there keeps its bits.
    std::vector<int32_t> loaded = ids;
    for (size_t pair = 0; pair < ids.size(); ++pair) loaded[pair] = pair % 5 == 0 ? ids[pair] : 2;
    for (const int tile : TilesOf(form)) {
      const std::vector<uint16_t> crowd = run_of(loaded, tile);
      for (size_t pair = 0; pair < ids.size(); ++pair) {
        if (loaded[pair] != ids[pair]) continue;
        ASSERT_TRUE(std::equal(crowd.begin() + pair * 128, crowd.begin() + (pair + 1) * 128,
                               all.begin() + pair * 128))
            << "pair " << pair << ", tile " << tile;
      }
    }
  }
}

// Many tokens, also all to one group.
TEST(GroupedBitsTest, TilesAgreeOnPrompts) {
  constexpr int kGroups = 7, kTokens = 4096, kSlots = 2;
  for (const GroupedForm& form :
       {kGroupedForms[0], kGroupedForms[2], kGroupedForms[3], kGroupedForms[6], kGroupedForms[7]}) {
    const GroupedProblem problem(form, kGroups, 144, 384, kTokens, false);
    std::vector<int32_t> ids = RandomIds(kTokens, kSlots, kGroups, 4);
    for (const bool one : {false, true}) {
      if (one) std::fill(ids.begin(), ids.end(), 3);
      GroupedRun run = {.problem = &problem,
                        .ids = ids,
                        .groups = kGroups,
                        .tokens = kTokens,
                        .slots = kSlots,
                        .output_stride = 144,
                        .tile = 8,
                        .ctas = 264};
      const std::vector<uint8_t> expected = run.Bytes();
      for (const int tile : TilesOf(form)) {
        run.tile = tile;
        EXPECT_TRUE(run.Bytes() == expected) << form.name << ", tile " << tile << ", one " << one;
      }
      const auto* const values = reinterpret_cast<const Bf16*>(expected.data());
      for (const int pair : {0, 4097, 8191}) {
        EXPECT_LE(RowError(values + pair * 144, Reference(run, pair, 144).data(), 144),
                  form.Bound());
      }
    }
  }
}

// The dense linear of few tokens, on one group's rows: BF16, and FP8 with scales that are powers of
// two, since it multiplies by their product.
TEST(GroupedBitsTest, GivesTheBitsOfTheDenseLinear) {
  constexpr int kTokens = 13;
  constexpr int64_t kRows = 208, kColumns = 1536;
  for (const GroupedForm& form : {kGroupedForms[0], kGroupedForms[3]}) {
    const GroupedProblem problem(form, 1, kRows, kColumns, kTokens, false);
    const GroupedWeight weight = problem.Weight();
    const DeviceBuffer<uint8_t> output(16 * kRows * 4);
    const DeviceBuffer<unsigned> counter(std::vector<unsigned>{0});
    SkinnyLinearArgs args;
    args.weight = {.data = weight.data,
                   .type = weight.type,
                   .scaling = weight.scaling,
                   .rows = kRows,
                   .stride = weight.stride,
                   .scales = weight.scales};
    args.input = problem.Input();
    args.tokens = kTokens;
    args.output = output.get();
    args.output_type = Type::kF32;
    args.output_stride = kRows;
    args.tile_counter = counter.get();
    args.config = {.stages = 4, .ctas = 132};
    ASSERT_EQ(LaunchSkinnyLinear(args, nullptr), cudaSuccess);
    std::vector<uint8_t> expected = output.Download();
    expected.resize(kTokens * kRows * 4);
    for (const int tile : TilesOf(form)) {
      const GroupedRun run = {.problem = &problem,
                              .ids = std::vector<int32_t>(kTokens, 0),
                              .groups = 1,
                              .tokens = kTokens,
                              .slots = 1,
                              .output_type = Type::kF32,
                              .output_stride = kRows,
                              .bias = false,
                              .tile = tile};
      EXPECT_TRUE(run.Bytes() == expected) << form.name << ", tile " << tile;
    }
  }
}

// Inputs that the kernel quantizes, beside those that LaunchQuantize did.
TEST(GroupedBitsTest, QuantizesAsTheKernelForItDoes) {
  constexpr int kGroups = 5, kTokens = 40, kSlots = 3;
  for (const Size& size : {Size{64, 128}, {176, 384}, {352, 1408}, {320, 2880}}) {
    const GroupedProblem problem(kGroupedForms[3], kGroups, size.rows, size.columns, kTokens, true);
    const int64_t stride = problem.stride();
    std::vector<float> values = RandomNormal(kTokens * stride, 9, 3);
    for (size_t i = 0; i < values.size(); ++i) {
      if (static_cast<int64_t>(i) % stride >= size.columns) values[i] = 0;
      if (static_cast<int64_t>(i) / stride == 7) values[i] = 0;  // a row of zeros
    }
    const DeviceBuffer<Bf16> x(ToBf16(values));
    const DeviceBuffer<uint8_t> codes(kTokens * stride);
    const DeviceBuffer<float> scales(stride / 128 * PaddedTokens(kTokens));
    const Activation quantized = {codes.get(), Type::kFp8, Scaling::kTokenGroup, stride,
                                  scales.get()};
    ASSERT_EQ(LaunchQuantize({.in = x.get(),
                              .in_stride = stride,
                              .tokens = kTokens,
                              .width = static_cast<int>(size.columns),
                              .out = quantized},
                             nullptr),
              cudaSuccess);
    const GroupedRun run = {.problem = &problem,
                            .ids = RandomIds(kTokens, kSlots, kGroups, 10),
                            .groups = kGroups,
                            .tokens = kTokens,
                            .slots = kSlots,
                            .gate = GroupedGate::kSilu,
                            .output_stride = (size.rows / 2 + 127) / 128 * 128,
                            .tile = 8};
    const auto with = [&](const Activation& input, bool delays) {
      return [input, delays](GroupedLinearArgs args) {
        args.input = input;
        if (!delays) return LaunchGroupedLinear(args, nullptr);
        return LaunchGroupedInstance<GroupedShape<GroupedKind::kFp8BlockOfBf16, 8>, RandomDelay>(
            args, nullptr);
      };
    };
    const std::vector<uint8_t> expected = run.Bytes(with(quantized, false));
    const Activation plain = Bf16Rows(x.get(), stride);
    EXPECT_TRUE(run.Bytes(with(plain, true)) == expected) << size.rows << " x " << size.columns;
    for (const int stages : {4, 5, 16}) {
      for (const int ctas : {2, 1000}) {
        GroupedRun own = run;
        own.stages = stages, own.ctas = ctas;
        EXPECT_TRUE(own.Bytes(with(plain, false)) == expected)
            << size.rows << " x " << size.columns << ", " << stages << " stages";
      }
    }
    const DeviceRows rows(run.ids, kGroups, 32);
    const GroupedLinearArgs refused = {.weight = problem.Weight(),
                                       .rows = &rows.view,
                                       .tokens = kTokens,
                                       .slots = kSlots,
                                       .input = plain,
                                       .gate = GroupedGate::kSilu,
                                       .output = codes.get(),
                                       .output_type = Type::kBf16,
                                       .output_stride = run.output_stride,
                                       .config = {32, 16, 264}};
    EXPECT_EQ(LaunchGroupedLinear(refused, nullptr), cudaErrorInvalidValue);
  }
}

// BF16 weights of the values of four-bit ones, of one group.
class DequantizedTwin {
 public:
  explicit DequantizedTwin(const GroupedWeight& weight)
      : values_(weight.rows * weight.stride), weight_(weight) {
    EXPECT_EQ(LaunchDequantizeFourBit({.format = *weight.four_bit,
                                       .tiles = weight.data,
                                       .rows = weight.rows,
                                       .stride = weight.stride,
                                       .out = values_.get()},
                                      nullptr),
              cudaSuccess);
    weight_.data = values_.get();
    weight_.four_bit.reset();
  }
  const GroupedWeight& weight() const { return weight_; }

 private:
  const DeviceBuffer<Bf16> values_;
  GroupedWeight weight_;
};

// Four bits give the bits of BF16 weights of the same values; also without a list of rows.
TEST(GroupedBitsTest, GivesTheBitsOfTheDequantizedTwin) {
  constexpr int kTokens = 70;
  for (const GroupedForm& form : kGroupedForms) {
    if (!form.four_bit.has_value()) continue;
    for (const Size& size : {Size{64, 128}, {208, 2880}, {1024, 4096}}) {
      const GroupedProblem problem(form, 1, size.rows, size.columns, kTokens, false);
      const GroupedWeight weight = problem.Weight();
      const DequantizedTwin twin(weight);
      for (const int tokens : {1, 5, 16, 33, 70}) {
        for (const int tile : TilesOf(form)) {
          SCOPED_TRACE(testing::Message() << form.name << ", " << size.rows << " x " << size.columns
                                          << ", " << tokens << " tokens, tile " << tile);
          std::vector<Bf16> results[2];
          for (const bool four : {false, true}) {
            const DeviceBuffer<Bf16> output((tokens + 1) * size.rows);
            const GroupedLinearArgs args = {.weight = four ? weight : twin.weight(),
                                            .rows = nullptr,
                                            .tokens = tokens,
                                            .slots = 1,
                                            .input = problem.Input(),
                                            .output = output.get(),
                                            .output_type = Type::kBf16,
                                            .output_stride = size.rows,
                                            .config = {four ? tile : 8, 16, 264}};
            ASSERT_EQ(LaunchGroupedLinear(args, nullptr), cudaSuccess);
            results[four] = output.Download();
            ASSERT_TRUE(IsPoison(results[four].data() + tokens * size.rows, size.rows));
          }
          ASSERT_EQ(
              std::memcmp(results[0].data(), results[1].data(), results[0].size() * sizeof(Bf16)),
              0);
        }
      }
    }
  }
}

// The same of tiles of 256 rows, which a config of few CTAs has of few rows: two tiles of 400 rows
// on one SM; four of 784 on two, the last with rows for one of its four groups of warps. 28672 rows
// are those of Llama-3-8B's gated linear.
TEST(GroupedBitsTest, WideTilesGiveTheBitsOfTheDequantizedTwin) {
  constexpr int kMostTokens = 300;
  struct Case {
    int64_t rows, columns;
    int ctas;
  };
  for (const GroupedForm& form : kGroupedForms) {
    if (!form.four_bit.has_value()) continue;
    for (const Case& test : {Case{400, 128, 2}, {784, 2880, 4}, {28672, 384, 264}}) {
      const GroupedProblem problem(form, 1, test.rows, test.columns, kMostTokens, true);
      const GroupedWeight weight = problem.Weight();
      const DequantizedTwin twin(weight);
      for (const auto& [tokens, tile] :
           {std::pair(17, 32), std::pair(32, 32), std::pair(33, 64), std::pair(64, 64),
            std::pair(70, 32), std::pair(65, kWideTokens), std::pair(128, kWideTokens),
            std::pair(300, kWideTokens)}) {
        ASSERT_EQ(FastestDenseTiles(CeilDiv<int64_t>(test.rows, kFourBitRows), test.columns, tokens,
                                    tile, test.ctas / 2),
                  DenseTiles::kWide);
        for (const bool gated : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << form.name << ", " << test.rows << " x " << test.columns << ", " << tokens
                       << " tokens, tile " << tile << (gated ? ", gated" : ""));
          const int64_t stride = gated ? CeilDiv<int64_t>(test.rows / 2, 128) * 128 : test.rows;
          std::vector<Bf16> results[2];
          for (const bool four : {false, true}) {
            const DeviceBuffer<Bf16> output((tokens + 1) * stride);
            const GroupedLinearArgs args = {
                .weight = four ? weight : twin.weight(),
                .rows = nullptr,
                .tokens = tokens,
                .slots = 1,
                .input = problem.Input(),
                .bias = problem.bias(),
                .gate = gated ? GroupedGate::kSilu : GroupedGate::kNone,
                .rounds_factors = gated,
                .output = output.get(),
                .output_type = Type::kBf16,
                .output_stride = stride,
                .config = {four ? tile : 8, 16, four ? test.ctas : 264}};
            ASSERT_EQ(LaunchGroupedLinear(args, nullptr), cudaSuccess);
            results[four] = output.Download();
            ASSERT_TRUE(IsPoison(results[four].data() + tokens * stride, stride));
          }
          ASSERT_EQ(
              std::memcmp(results[0].data(), results[1].data(), results[0].size() * sizeof(Bf16)),
              0);
        }
      }
    }
  }
}

// The same of more tokens than a tile has, in each way to divide the product.
TEST(GroupedBitsTest, SeveralTilesOfTokensGiveTheBitsOfOne) {
  constexpr int kMostTokens = 200;
  constexpr int64_t kRows = 784;
  for (const GroupedForm& form : kGroupedForms) {
    if (!form.four_bit.has_value()) continue;
    for (const int64_t columns : {128, 2880}) {
      const GroupedProblem problem(form, 1, kRows, columns, kMostTokens, true);
      const auto output_of = [&](int tokens, int tile, int ctas) {
        const DeviceBuffer<Bf16> output((tokens + 1) * kRows);
        EXPECT_EQ(LaunchGroupedLinear({.weight = problem.Weight(),
                                       .rows = nullptr,
                                       .tokens = tokens,
                                       .slots = 1,
                                       .input = problem.Input(),
                                       .bias = problem.bias(),
                                       .output = output.get(),
                                       .output_type = Type::kBf16,
                                       .output_stride = kRows,
                                       .config = {tile, 16, ctas}},
                                      nullptr),
                  cudaSuccess);
        std::vector<Bf16> values = output.Download();
        EXPECT_TRUE(IsPoison(values.data() + tokens * kRows, kRows));
        return values;
      };
      std::set<DenseTiles> seen;
      for (const int tokens : {65, 96, 128, 129, 200}) {
        const std::vector<Bf16> expected = output_of(tokens, 8, 264);
        for (const int ctas : {2, 8, 40, 264}) {
          seen.insert(FastestDenseTiles(CeilDiv<int64_t>(kRows, kFourBitRows),
                                        problem.Weight().stride, tokens, 64, ctas / 2));
          for (const int tile : {64, kWideTokens}) {
            EXPECT_EQ(std::memcmp(output_of(tokens, tile, ctas).data(), expected.data(),
                                  expected.size() * sizeof(Bf16)),
                      0)
                << form.name << ", " << columns << " columns, " << tokens << " tokens, tile "
                << tile << ", " << ctas << " CTAs";
          }
        }
      }
      if (columns == 2880) EXPECT_EQ(seen.size(), 3) << "a way was not tried";
    }
  }
}

template <GroupedKind kKind>
cudaError_t LaunchDelayed(const GroupedLinearArgs& args) {
  return args.config.tile_tokens == kPromptTile
             ? LaunchPromptKind<kKind, RandomDelay>(args, nullptr)
             : LaunchGroupedKind<kKind, RandomDelay>(args, nullptr);
}

TEST(GroupedBitsTest, WaitsForWhatItNeeds) {
  constexpr int kGroups = 4, kTokens = 90, kSlots = 2;
  struct Case {
    const GroupedForm* form;
    cudaError_t (*launch)(const GroupedLinearArgs&);
  };
  for (const Case& test : {Case{&kGroupedForms[0], LaunchDelayed<GroupedKind::kBf16>},
                           Case{&kGroupedForms[3], LaunchDelayed<GroupedKind::kFp8Block>},
                           Case{&kGroupedForms[7], LaunchDelayed<GroupedKind::kMxfp4>}}) {
    const GroupedProblem problem(*test.form, kGroups, 448, 1536, kTokens, true);
    for (const int tile : TilesOf(*test.form)) {
      for (const int stages : {4, 16}) {
        const GroupedRun run = {.problem = &problem,
                                .ids = RandomIds(kTokens, kSlots, kGroups, 5),
                                .groups = kGroups,
                                .tokens = kTokens,
                                .slots = kSlots,
                                .gate = GroupedGate::kSilu,
                                .output_stride = 256,
                                .tile = tile,
                                .ctas = 7,
                                .stages = stages};
        const std::vector<uint8_t> expected = run.Bytes();
        for (int repeat = 0; repeat < 2; ++repeat) {
          EXPECT_TRUE(run.Bytes(test.launch) == expected)
              << test.form->name << ", tile " << tile << ", " << stages << " stages";
        }
      }
    }
  }
}

// Dense linears, also where there are fewer turns than teams, and where groups of warps have no
// rows.
TEST(GroupedBitsTest, WarpsOfDenseTilesWaitForOneAnother) {
  const GroupedForm& form = kGroupedForms[7];
  ASSERT_EQ(form.four_bit->type, FourBitType::kMxfp4);
  constexpr int64_t kRows = 784;
  for (const int64_t columns : {128, 256, 384, 640, 2880}) {
    const GroupedProblem problem(form, 1, kRows, columns, 64, false);
    for (const int tile : {8, 16, 32, 64}) {
      std::vector<Bf16> expected;  // of the first config; the others give the same
      // With an SM for each tile warps take turns. From 32 tokens on tiles have 256 rows with four
      // CTAs, which have two of them each, and 64 rows with six.
      for (const auto& [stages, ctas] : {std::pair(4, 264), std::pair(16, 264), std::pair(4, 4),
                                         std::pair(5, 4), std::pair(4, 6)}) {
        const DeviceBuffer<Bf16> output(64 * kRows);
        const GroupedLinearArgs args = {.weight = problem.Weight(),
                                        .rows = nullptr,
                                        .tokens = tile - 1,
                                        .slots = 1,
                                        .input = problem.Input(),
                                        .output = output.get(),
                                        .output_type = Type::kBf16,
                                        .output_stride = kRows,
                                        .config = {tile, stages, ctas}};
        ASSERT_EQ(LaunchGroupedLinear(args, nullptr), cudaSuccess);
        const std::vector<Bf16> undelayed = output.Download();
        if (expected.empty()) expected = undelayed;
        const auto expect_equal = [&](const std::vector<Bf16>& values) {
          EXPECT_EQ(std::memcmp(values.data(), expected.data(), expected.size() * sizeof(Bf16)), 0)
              << columns << " columns, tile " << tile << ", " << stages << " stages, " << ctas
              << " CTAs";
        };
        expect_equal(undelayed);
        for (int repeat = 0; repeat < 3; ++repeat) {
          const DeviceBuffer<Bf16> again(64 * kRows);
          GroupedLinearArgs other = args;
          other.output = again.get();
          ASSERT_EQ(LaunchDelayed<GroupedKind::kMxfp4>(other), cudaSuccess);
          expect_equal(again.Download());
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace::kernels::sm90
