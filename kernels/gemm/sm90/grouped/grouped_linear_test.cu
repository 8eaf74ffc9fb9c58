#include "kernels/gemm/grouped_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/fp8.cuh"
#include "kernels/gemm/four_bit.h"
#include "kernels/gemm/grouped_test_util.h"
#include "kernels/gemm/sm90/grouped/grouped_run_test_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels::sm90 {
namespace {

// The bound on a row's error. Rounding to BF16 alone gives a row of few columns up to 2^-17, where
// they lie just above powers of two; fp32's sums add little to it.
double BoundOf(const std::vector<double>& expected, double bound) {
  const std::vector<Bf16> rounded = ToBf16({expected.begin(), expected.end()});
  return std::max(bound, RowError(rounded.data(), expected.data(), expected.size()) + 2e-7);
}

// Compares every pair of a run with the reference, and what lies behind its columns with poison
// or, of a gated linear, zeros.
template <typename T>
void ExpectReference(const GroupedRun& run, int64_t rows, double bound) {
  const std::vector<T> values = run.Values<T>();
  const int64_t width = run.gate == GroupedGate::kNone ? rows : rows / 2;
  for (size_t pair = 0; pair < run.ids.size(); ++pair) {
    const T* const row = values.data() + pair * run.output_stride;
    if (run.ids[pair] < 0 || run.ids[pair] >= run.groups) {
      ASSERT_TRUE(IsPoison(row, run.output_stride)) << "pair " << pair;
      continue;
    }
    const std::vector<double> expected = Reference(run, static_cast<int>(pair), rows);
    ASSERT_LE(RowError(row, expected.data(), width), BoundOf(expected, bound)) << "pair " << pair;
    if (run.gate == GroupedGate::kNone) {
      ASSERT_TRUE(IsPoison(row + width, run.output_stride - width)) << "pair " << pair;
    } else {
      for (int64_t c = width; c < run.output_stride; ++c) {
        ASSERT_EQ(static_cast<float>(row[c]), 0) << "pair " << pair << ", column " << c;
      }
    }
  }
}

constexpr Size kSizes[] = {{64, 128}, {16, 256}, {176, 320}, {320, 2880}};

TEST(GroupedLinearTest, MatchesDoubleInEveryForm) {
  constexpr int kGroups = 5, kTokens = 9, kSlots = 2;
  for (const GroupedForm& form : kGroupedForms) {
    for (const Size& size : kSizes) {
      const GroupedProblem problem(form, kGroups, size.rows, size.columns, kTokens, false);
      std::vector<int32_t> ids = RandomIds(kTokens, kSlots, kGroups - 1, 1);  // the last has none
      ids[3] = -1, ids[7] = kGroups;                                          // nobody's
      for (const int tile : TilesOf(form)) {
        for (const Type type : {Type::kBf16, Type::kF32}) {
          SCOPED_TRACE(testing::Message()
                       << form.name << ", " << size.rows << " x " << size.columns << ", tile "
                       << tile << ", FP32 " << (type == Type::kF32));
          const GroupedRun run = {.problem = &problem,
                                  .ids = ids,
                                  .groups = kGroups,
                                  .tokens = kTokens,
                                  .slots = kSlots,
                                  .output_type = type,
                                  .output_stride = size.rows + 8,
                                  .tile = tile,
                                  .ctas = tile == 16 ? 3 : 1000};
          if (type == Type::kBf16) {
            ExpectReference<Bf16>(run, size.rows, form.Bound());
          } else {
            ExpectReference<float>(run, size.rows, form.Bound());
          }
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(GroupedLinearTest, JoinsGatedFactors) {
  constexpr int kGroups = 3, kTokens = 11, kSlots = 2;
  const DeviceBuffer<float> scale(std::vector<float>{0.02f});
  for (const GroupedForm& form : kGroupedForms) {
    for (const Size& size : {Size{32, 128}, {352, 256}, {576, 384}}) {
      const GroupedProblem problem(form, kGroups, size.rows, size.columns, kTokens, true);
      for (const GroupedGate gate :
           {GroupedGate::kSilu, GroupedGate::kGeluTanh, GroupedGate::kClampedSwish}) {
        for (const int tile : TilesOf(form)) {
          SCOPED_TRACE(testing::Message()
                       << form.name << ", " << size.rows << " x " << size.columns << ", gate "
                       << static_cast<int>(gate) << ", tile " << tile);
          GroupedRun run = {.problem = &problem,
                            .ids = RandomIds(kTokens, kSlots, kGroups, 2),
                            .groups = kGroups,
                            .tokens = kTokens,
                            .slots = kSlots,
                            .gate = gate,
                            .output_stride = (size.rows / 2 + 127) / 128 * 128,
                            .tile = tile};
          ExpectReference<Bf16>(run, size.rows, 2 * form.Bound());
          if (HasFatalFailure()) return;
          // FP8 of the same values: within a code of the BF16 output's.
          const std::vector<Bf16> plain = run.Values<Bf16>();
          run.output_type = Type::kFp8;
          run.output_scale = scale.get();
          const std::vector<uint8_t> codes = run.Bytes();
          const float inverse = Fp8Inverse(0.02f);
          for (size_t i = 0; i < codes.size(); ++i) {
            const float value = static_cast<float>(plain[i]);
            const float code = std::clamp(value * inverse, -448.0f, 448.0f);
            ASSERT_NEAR(FromFp8(codes[i]), code, 0.0665f * std::abs(code) + 0.002f) << i;
          }
        }
      }
    }
  }
}

TEST(GroupedLinearTest, RefusesWhatItCannotRun) {
  const GroupedProblem problem(kGroupedForms[2], 2, 64, 128, 3, false);
  const DeviceBuffer<Bf16> output(6 * 128);
  DeviceRows rows(RandomIds(3, 2, 2, 6), 2, 8);
  const auto refused = [&](auto change) {
    GroupedRows own = rows.view;
    GroupedLinearArgs args = {.weight = problem.Weight(),
                              .rows = &own,
                              .tokens = 3,
                              .slots = 2,
                              .input = problem.Input(),
                              .output = output.get(),
                              .output_type = Type::kBf16,
                              .output_stride = 128,
                              .config = {8, 16, 264}};
    change(args, own);
    return LaunchGroupedLinear(args, nullptr) == cudaErrorInvalidValue;
  };
  using Args = GroupedLinearArgs;
  EXPECT_FALSE(refused([](Args&, GroupedRows&) {}));
  EXPECT_TRUE(refused([](Args& a, GroupedRows&) { a.weight.rows = 24; }));
  EXPECT_TRUE(refused([](Args& a, GroupedRows&) { a.weight.groups = 3; }));
  EXPECT_TRUE(refused([](Args& a, GroupedRows&) { a.weight.scales = nullptr; }));
  EXPECT_TRUE(refused([](Args& a, GroupedRows&) { a.weight.four_bit = FourBitFormat{}; }));
  EXPECT_TRUE(refused([](Args& a, GroupedRows&) { a.input.stride = 256; }));
  EXPECT_TRUE(refused([](Args& a, GroupedRows&) { a.input.scaling = Scaling::kTokenGroup; }));
  EXPECT_TRUE(refused([](Args& a, GroupedRows&) { a.output_stride = 56; }));
  EXPECT_TRUE(refused([](Args& a, GroupedRows&) { a.output_type = Type::kFp8; }));
  EXPECT_TRUE(refused([](Args& a, GroupedRows&) { a.slots = 1; }));  // fewer than the pairs
  EXPECT_TRUE(refused([](Args& a, GroupedRows&) { a.rows = nullptr; }));
  EXPECT_TRUE(refused([](Args& a, GroupedRows&) { a.config.tile_tokens = 16; }));
  EXPECT_TRUE(refused([](Args& a, GroupedRows&) { a.config.stages = 3; }));
  EXPECT_TRUE(refused([](Args& a, GroupedRows&) { a.sorted_input = true; }));
  EXPECT_TRUE(refused([](Args& a, GroupedRows&) { a.sorted_output = true; }));
  const auto sort = [](Args& a, GroupedRows& r) {
    a.config.tile_tokens = r.tile_rows = kPromptTile;
    a.sorted_input = true;
    a.tokens = r.pairs;
    a.slots = 1;
  };
  // Nothing is launched: the input has rows for the tokens alone.
  EXPECT_TRUE(refused([&](Args& a, GroupedRows& r) { sort(a, r), a.slots = 2; }));
  EXPECT_TRUE(refused([&](Args& a, GroupedRows& r) { sort(a, r), a.tokens = 3; }));
  EXPECT_TRUE(refused([&](Args& a, GroupedRows& r) { sort(a, r), a.sorted_input = false; }));
  EXPECT_TRUE(refused([](Args&, GroupedRows& r) { r.tile_count = nullptr; }));
  CheckCuda(cudaDeviceSynchronize(), "launch");
}

}  // namespace
}  // namespace millrace::kernels::sm90
