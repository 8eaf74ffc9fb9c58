#include "kernels/weights/fill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

template <typename T>
std::vector<T> Filled(const FillArgs& shape) {
  const DeviceBuffer<T> out(shape.rows * shape.stride);
  FillArgs args = shape;
  args.out = out.get();
  EXPECT_EQ(LaunchFill(args, nullptr), cudaSuccess);
  EXPECT_TRUE(out.GuardsIntact());
  return out.Download();
}

TEST(FillTest, IsUniformBetweenItsBounds) {
  const auto values =
      Filled<float>({.type = Type::kF32, .rows = 1000, .columns = 1024, .stride = 1024, .seed = 7});
  double sum = 0, squares = 0;
  for (const float value : values) {
    ASSERT_GE(value, -1e-3f);
    ASSERT_LE(value, 1e-3f);
    sum += value;
    squares += double{value} * value;
  }
  const double count = static_cast<double>(values.size());
  // Standard errors of a million draws: 6e-7 of the mean, 0.09 % of the mean square.
  EXPECT_NEAR(sum / count, 0, 3e-6);
  EXPECT_NEAR(squares / count, 1e-6 / 3, 1e-6 / 3 * 0.005);
  EXPECT_LT(*std::min_element(values.begin(), values.end()), -0.9999e-3f);
  EXPECT_GT(*std::max_element(values.begin(), values.end()), 0.9999e-3f);
}

TEST(FillTest, DoesNotDependOnTheLayout) {
  const FillArgs dense = {.type = Type::kF32, .rows = 37, .columns = 576, .stride = 576, .seed = 3};
  FillArgs padded = dense;
  padded.stride = 640;
  const auto expected = Filled<float>(dense), got = Filled<float>(padded);
  for (int64_t row = 0; row < 37; ++row) {
    for (int64_t column = 0; column < 640; ++column) {
      ASSERT_EQ(got[row * 640 + column], column < 576 ? expected[row * 576 + column] : 0)
          << row << ", " << column;
    }
  }
  FillArgs bf16 = dense;
  bf16.type = Type::kBf16;
  const auto rounded = Filled<Bf16>(bf16);
  for (size_t i = 0; i < rounded.size(); ++i) {
    ASSERT_EQ(static_cast<float>(rounded[i]), static_cast<float>(static_cast<Bf16>(expected[i])));
  }
}

TEST(FillTest, DrawsOtherNumbersForAnotherSeed) {
  FillArgs args = {.type = Type::kF32, .rows = 16, .columns = 64, .stride = 64, .seed = 1};
  const auto first = Filled<float>(args);
  EXPECT_EQ(Filled<float>(args), first);
  args.seed = 2;
  const auto second = Filled<float>(args);
  int equal = 0;
  for (size_t i = 0; i < first.size(); ++i) equal += first[i] == second[i];
  EXPECT_LT(equal, 3);
}

TEST(FillTest, SpansTheCodesOfFp8) {
  const auto codes = Filled<uint8_t>({.type = Type::kFp8,
                                      .rows = 33,
                                      .columns = 100,
                                      .stride = 112,
                                      .seed = 5,
                                      .low = -448,
                                      .high = 448});
  const auto drawn = Filled<float>({.type = Type::kF32,
                                    .rows = 33,
                                    .columns = 100,
                                    .stride = 112,
                                    .seed = 5,
                                    .low = -448,
                                    .high = 448});
  for (size_t i = 0; i < codes.size(); ++i) ASSERT_EQ(codes[i], ToFp8(drawn[i])) << i;
}

TEST(FillTest, RefusesWhatDoesNotFit) {
  const DeviceBuffer<float> out(64);
  FillArgs args = {
      .out = out.get(), .type = Type::kF32, .rows = 1, .columns = 64, .stride = 56, .seed = 1};
  EXPECT_EQ(LaunchFill(args, nullptr), cudaErrorInvalidValue);
  args.stride = 64;
  EXPECT_EQ(LaunchFill(args, nullptr), cudaSuccess);
  args.low = NAN;
  EXPECT_EQ(LaunchFill(args, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace millrace::kernels
