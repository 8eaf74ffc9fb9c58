#include "kernels/weights/quantize_int4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/gemm/four_bit.h"
#include "kernels/test_util.h"
#include "kernels/weights/int4_rule.cuh"

namespace millrace::kernels {
namespace {

Int4Group RuleOf(const Bf16* weights) {
  float x[kInt4Group];
  for (int i = 0; i < kInt4Group; ++i) x[i] = static_cast<float>(weights[i]);
  return QuantizeInt4(x);
}

float ValueOf(const Int4Group& group, int i) {
  return std::fma(static_cast<float>(group.scale), static_cast<float>(group.Code(i)),
                  static_cast<float>(group.minimum));
}

// Weights with rows of zeros, of one number, on a line of 16 points, and of very small and large
// numbers.
std::vector<Bf16> Weights(int64_t rows, int64_t stride) {
  std::vector<float> values = RandomNormal(rows * stride, 21, 0.02f);
  for (int64_t i = 0; i < stride; ++i) {
    values[i] = 0;
    if (rows > 1) values[stride + i] = 0.375f;
    if (rows > 2) values[2 * stride + i] = 0.25f * static_cast<float>(i % 16) - 1.5f;
    if (rows > 3) values[3 * stride + i] *= 1e-36f;
    if (rows > 4) values[4 * stride + i] *= 1e36f;
  }
  return ToBf16(values);
}

struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<Bf16> scales, minima;
};

Quantized Quantize(const std::vector<Bf16>& source, int64_t rows, int64_t stride) {
  const DeviceBuffer<Bf16> from(source), scales(rows * stride / 32), minima(rows * stride / 32);
  const DeviceBuffer<uint8_t> codes(rows * stride / 2);
  EXPECT_EQ(LaunchQuantizeInt4({.source = from.get(),
                                .rows = rows,
                                .stride = stride,
                                .codes = codes.get(),
                                .scales = scales.get(),
                                .minima = minima.get()},
                               nullptr),
            cudaSuccess);
  Quantized quantized = {codes.Download(), scales.Download(), minima.Download()};
  EXPECT_TRUE(codes.GuardsIntact() && scales.GuardsIntact() && minima.GuardsIntact());
  return quantized;
}

TEST(QuantizeInt4Test, RoundsEachGroupByTheRule) {
  for (const auto& [rows, stride] : {std::pair<int64_t, int64_t>{1, 128}, {7, 384}, {515, 1024}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << stride);
    const std::vector<Bf16> source = Weights(rows, stride);
    const Quantized got = Quantize(source, rows, stride);
    for (int64_t i = 0; i < rows * stride / 32; ++i) {
      const Int4Group expected = RuleOf(&source[i * 32]);
      ASSERT_EQ(static_cast<float>(got.scales[i]), static_cast<float>(expected.scale)) << i;
      ASSERT_EQ(static_cast<float>(got.minima[i]), static_cast<float>(expected.minimum)) << i;
      ASSERT_EQ(std::memcmp(&got.codes[i * 16], expected.codes, 16), 0) << i;
    }
  }
}

TEST(QuantizeInt4Test, ComesNearTheWeights) {
  constexpr int64_t kGroups = 20000;
  const std::vector<Bf16> source = ToBf16(RandomNormal(kGroups * 32, 22, 0.02f));
  double error = 0, squares = 0;
  for (int64_t i = 0; i < kGroups; ++i) {
    const Int4Group group = RuleOf(&source[i * 32]);
    float low = std::numeric_limits<float>::infinity(), high = -low;
    for (int j = 0; j < 32; ++j) {
      const float x = static_cast<float>(source[i * 32 + j]);
      low = std::min(low, x), high = std::max(high, x);
      const double off = ValueOf(group, j) - x;
      error += off * off;
      squares += static_cast<double>(x) * x;
    }
    for (int j = 0; j < 32; ++j) {  // half a step, but for the ends, which a fit may move
      const float x = static_cast<float>(source[i * 32 + j]);
      ASSERT_LE(std::abs(ValueOf(group, j) - x), (high - low) / 15) << i;
    }
  }
  EXPECT_NEAR(std::sqrt(error / squares), 0.0736, 0.0005);
}

TEST(QuantizeInt4Test, KeepsWhatSixteenNumbersHold) {
  const std::vector<Bf16> source = Weights(3, 128);
  for (int64_t i = 0; i < 3 * 4; ++i) {
    const Int4Group group = RuleOf(&source[i * 32]);
    for (int j = 0; j < 32; ++j) {
      EXPECT_EQ(ValueOf(group, j), static_cast<float>(source[i * 32 + j])) << i << ", " << j;
    }
  }
}

TEST(QuantizeInt4Test, ShowsWhatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::nanf(""), kInfinity, -kInfinity}) {
    for (const int at : {0, 7, 31}) {
      std::vector<Bf16> source = ToBf16(RandomNormal(128, 23));
      source[at] = __float2bfloat16(bad);
      const Quantized got = Quantize(source, 1, 128);
      EXPECT_FALSE(std::isfinite(static_cast<float>(got.scales[0])));
      for (int i = 0; i < 16; ++i) EXPECT_EQ(got.codes[i], 0);
      EXPECT_TRUE(std::isfinite(static_cast<float>(got.scales[1])));
    }
  }
}

// Quantized codes and scales make the tiles that a linear multiplies by.
TEST(QuantizeInt4Test, GivesTheTilesOfFourBitWeights) {
  constexpr int64_t kRows = 80, kStride = 256;
  constexpr FourBitFormat kFormat = {FourBitType::kInt4Affine, 32};
  const std::vector<Bf16> source = ToBf16(RandomNormal(kRows * kStride, 24, 0.02f));
  const Quantized quantized = Quantize(source, kRows, kStride);
  const DeviceBuffer<uint8_t> codes(quantized.codes), tiles(kFormat.Bytes(kRows, kStride));
  const DeviceBuffer<Bf16> scales(quantized.scales), minima(quantized.minima);
  const DeviceBuffer<Bf16> out(kRows * kStride);
  ASSERT_EQ(LaunchTileFourBit({.format = kFormat,
                               .rows = kRows,
                               .columns = kStride,
                               .stride = kStride,
                               .codes = codes.get(),
                               .scales = scales.get(),
                               .zeros = nullptr,
                               .source_rows = nullptr,
                               .out = tiles.get(),
                               .minima = minima.get()},
                              nullptr),
            cudaSuccess);
  ASSERT_EQ(LaunchDequantizeFourBit({.format = kFormat,
                                     .tiles = tiles.get(),
                                     .rows = kRows,
                                     .stride = kStride,
                                     .out = out.get()},
                                    nullptr),
            cudaSuccess);
  const std::vector<Bf16> values = out.Download();
  for (int64_t i = 0; i < kRows * kStride; ++i) {
    const float expected = ValueOf(RuleOf(&source[i / 32 * 32]), static_cast<int>(i % 32));
    ASSERT_EQ(static_cast<float>(values[i]), static_cast<float>(__float2bfloat16(expected))) << i;
  }
}

TEST(QuantizeInt4Test, RefusesWhatDoesNotFit) {
  const DeviceBuffer<uint8_t> memory(4096);
  const QuantizeInt4Args good = {.source = reinterpret_cast<const Bf16*>(memory.get()),
                                 .rows = 1,
                                 .stride = 128,
                                 .codes = memory.get() + 1024,
                                 .scales = reinterpret_cast<Bf16*>(memory.get() + 2048),
                                 .minima = reinterpret_cast<Bf16*>(memory.get() + 3072)};
  const auto refused = [&](auto change) {
    QuantizeInt4Args args = good;
    change(args);
    return LaunchQuantizeInt4(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([](QuantizeInt4Args& args) { args.source = nullptr; }));
  EXPECT_TRUE(refused([](QuantizeInt4Args& args) { args.rows = 0; }));
  EXPECT_TRUE(refused([](QuantizeInt4Args& args) { args.stride = 96; }));
  EXPECT_TRUE(refused([](QuantizeInt4Args& args) { args.codes += 8; }));
  EXPECT_TRUE(refused([](QuantizeInt4Args& args) { args.minima = nullptr; }));
  EXPECT_EQ(LaunchQuantizeInt4(good, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace millrace::kernels
