#include "kernels/gemm/four_bit.h"

#include <gtest/gtest.h>

#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/gemm/four_bit_test_util.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr FourBitFormat kFormats[] = {
    {FourBitType::kInt4, 32, FourBitScale::kF16},
    {FourBitType::kInt4, 32, FourBitScale::kBf16},
    {FourBitType::kInt4, 64, FourBitScale::kF16},
    {FourBitType::kInt4, 64, FourBitScale::kBf16},
    {FourBitType::kInt4, 128, FourBitScale::kF16},
    {FourBitType::kInt4, 128, FourBitScale::kBf16},
    {FourBitType::kMxfp4, 32, FourBitScale::kBf16},
    {FourBitType::kInt4Affine, 32},
    {FourBitType::kInt4, 32, FourBitScale::kF16, /*symmetric=*/true},
    {FourBitType::kInt4, 64, FourBitScale::kBf16, /*symmetric=*/true},
    {FourBitType::kInt4, 128, FourBitScale::kF16, /*symmetric=*/true},
};

// Tiles a source and undoes it: what is read back.
std::vector<Bf16> RoundTrip(const FourBitSource& source, const FourBitFormat& format, int64_t rows,
                            int64_t stride, const std::vector<int32_t>& source_rows) {
  const DeviceBuffer<uint8_t> tiles(format.Bytes(rows, stride));
  const DeviceBuffer<Bf16> out(rows * stride);
  const DeviceBuffer<int32_t> map(source_rows);
  EXPECT_EQ(source.Tile(rows, stride, source_rows.empty() ? nullptr : map.get(), tiles.get()),
            cudaSuccess);
  EXPECT_EQ(LaunchDequantizeFourBit({.format = format,
                                     .tiles = tiles.get(),
                                     .rows = rows,
                                     .stride = stride,
                                     .out = out.get()},
                                    nullptr),
            cudaSuccess);
  const std::vector<Bf16> values = out.Download();
  EXPECT_TRUE(tiles.GuardsIntact() && out.GuardsIntact());
  return values;
}

TEST(FourBitTest, GivesTheValuesOfTheDefinition) {
  for (const FourBitFormat& format : kFormats) {
    struct Size {
      int64_t rows, columns;
    };
    for (const Size& size :
         {Size{64, 128}, {16, 128}, {80, 256}, {208, 2880}, {96, 1000}, {64, 2}}) {
      SCOPED_TRACE(testing::Message()
                   << "type " << static_cast<int>(format.type) << " by " << format.group
                   << (format.scale == FourBitScale::kF16 ? ", FP16, " : ", BF16, ")
                   << (format.symmetric ? "symmetric, " : "") << size.rows << " x "
                   << size.columns);
      const int64_t columns = std::max<int64_t>(size.columns / format.group, 1) * format.group;
      const int64_t stride = (columns + 127) / 128 * 128 + 128;  // a block of padding, too
      const FourBitSource source(format, size.rows, columns, 11);
      const std::vector<Bf16> values = RoundTrip(source, format, size.rows, stride, {});
      for (int64_t row = 0; row < size.rows; ++row) {
        for (int64_t c = 0; c < stride; ++c) {
          const float expected = c < columns ? source.Value(row, c) : 0;
          ASSERT_EQ(static_cast<float>(values[row * stride + c]), expected) << row << ", " << c;
        }
      }
    }
  }
}

// Every FP16 scale, and every BF16 scale of a size that is taken, with all codes.
TEST(FourBitTest, RoundsEveryScaleOnce) {
  const FourBitFormat formats[] = {{FourBitType::kInt4, 32, FourBitScale::kF16},
                                   {FourBitType::kInt4, 32, FourBitScale::kBf16},
                                   {FourBitType::kInt4, 32, FourBitScale::kF16, true},
                                   {FourBitType::kInt4, 32, FourBitScale::kBf16, true}};
  for (const FourBitFormat& format : formats) {
    SCOPED_TRACE(static_cast<int>(format.Steps()));
    const FourBitScale type = format.scale;
    const bool is_line = format.Steps() == FourBitSteps::kLine;
    std::vector<uint8_t> scales;
    for (int bits = 0; bits < 65536; ++bits) {
      const float scale = type == FourBitScale::kF16
                              ? __half2float(__ushort_as_half(static_cast<uint16_t>(bits)))
                              : __bfloat162float(__ushort_as_bfloat16(static_cast<uint16_t>(bits)));
      // Products must not leave the normal numbers of BF16.
      if (!(std::abs(scale) < (is_line ? kMaxLineScale : kMaxFourBitScale))) continue;
      if (scale != 0 && std::abs(scale) < 1e-30f) continue;
      scales.push_back(static_cast<uint8_t>(bits));
      scales.push_back(static_cast<uint8_t>(bits >> 8));
    }
    const int64_t groups = 4, rows = static_cast<int64_t>(scales.size()) / 2 / groups / 16 * 16;
    scales.resize(rows * groups * 2);
    const FourBitSource source(format, rows, 128, 12, scales);
    const std::vector<Bf16> values = RoundTrip(source, format, rows, 128, {});
    for (int64_t i = 0; i < rows * 128; ++i) {
      ASSERT_EQ(static_cast<float>(values[i]), source.Value(i / 128, i % 128)) << i;
    }
  }
}

// BF16 scales of all sizes, with all codes and minima of all sizes beside them.
TEST(FourBitTest, RoundsSumsWithMinimaOnce) {
  constexpr int64_t kRows = 1024, kGroups = 4;
  const FourBitFormat format = {FourBitType::kInt4Affine, 32};
  std::mt19937 random(15);
  std::vector<uint8_t> codes(kRows * 64);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 2 % 16 * 17 + 16);
  std::vector<Bf16> scales, minima;
  for (int64_t i = 0; i < kRows * kGroups; ++i) {
    const int exponent = static_cast<int>(random() % 77) - 60;
    const auto number = [&](int power) {
      const float drawn = 1 + static_cast<float>(random() % 128) / 128;
      return __float2bfloat16(std::ldexp(random() % 2 == 0 ? drawn : -drawn, power));
    };
    scales.push_back(number(exponent));
    minima.push_back(number(exponent + static_cast<int>(random() % 26) - 10));
  }
  const DeviceBuffer<uint8_t> device_codes(codes), tiles(format.Bytes(kRows, 128));
  const DeviceBuffer<Bf16> device_scales(scales), device_minima(minima), out(kRows * 128);
  ASSERT_EQ(LaunchTileFourBit({.format = format,
                               .rows = kRows,
                               .columns = 128,
                               .stride = 128,
                               .codes = device_codes.get(),
                               .scales = device_scales.get(),
                               .zeros = nullptr,
                               .source_rows = nullptr,
                               .out = tiles.get(),
                               .minima = device_minima.get()},
                              nullptr),
            cudaSuccess);
  ASSERT_EQ(
      LaunchDequantizeFourBit(
          {.format = format, .tiles = tiles.get(), .rows = kRows, .stride = 128, .out = out.get()},
          nullptr),
      cudaSuccess);
  const std::vector<Bf16> values = out.Download();
  for (int64_t i = 0; i < kRows * 128; ++i) {
    const int code = codes[i / 2] >> (i % 2 * 4) & 15;
    const double exact = static_cast<double>(__bfloat162float(scales[i / 32])) * code +
                         static_cast<double>(__bfloat162float(minima[i / 32]));
    ASSERT_EQ(static_cast<float>(values[i]), __bfloat162float(__double2bfloat16(exact))) << i;
  }
}

TEST(FourBitTest, RoundsEveryMxfp4ScaleOnce) {
  const FourBitFormat format = {FourBitType::kMxfp4, 32};
  std::vector<uint8_t> scales(256);
  for (int i = 0; i < 256; ++i) scales[i] = static_cast<uint8_t>(i % 252);  // 6 * 2^124 is finite
  const FourBitSource source(format, 64, 128, 13, scales);
  const std::vector<Bf16> values = RoundTrip(source, format, 64, 128, {});
  for (int64_t i = 0; i < 64 * 128; ++i) {
    ASSERT_EQ(static_cast<float>(values[i]), source.Value(i / 128, i % 128)) << i;
  }
}

TEST(FourBitTest, TakesRowsFromWhereTheyLie) {
  for (const FourBitFormat& format : kFormats) {
    const FourBitSource source(format, 96, 384, 14);
    std::vector<int32_t> map(80);  // gate and up of 40 outputs in turns of eight, but for two rows
    for (int i = 0; i < 80; ++i) map[i] = i / 16 * 8 + i % 8 + (i / 8 % 2) * 48;
    map[3] = -1, map[79] = -1;
    const std::vector<Bf16> values = RoundTrip(source, format, 80, 384, map);
    for (int64_t i = 0; i < 80 * 384; ++i) {
      const int32_t row = map[i / 384];
      ASSERT_EQ(static_cast<float>(values[i]), row < 0 ? 0 : source.Value(row, i % 384)) << i;
    }
  }
}

TEST(FourBitTest, RefusesWhatItCannotDo) {
  const DeviceBuffer<uint8_t> memory(1 << 16);
  const TileFourBitArgs tile = {.format = kFormats[0],
                                .rows = 64,
                                .columns = 128,
                                .stride = 128,
                                .codes = memory.get(),
                                .scales = memory.get(),
                                .zeros = nullptr,
                                .source_rows = nullptr,
                                .out = memory.get() + (1 << 15)};
  const auto refused = [&](auto change) {
    TileFourBitArgs args = tile;
    change(args);
    return LaunchTileFourBit(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_FALSE(refused([](TileFourBitArgs&) {}));
  EXPECT_TRUE(refused([](TileFourBitArgs& a) { a.format.group = 16; }));
  EXPECT_TRUE(refused([](TileFourBitArgs& a) { a.format = {FourBitType::kMxfp4, 64}; }));
  EXPECT_TRUE(refused([](TileFourBitArgs& a) { a.format = {FourBitType::kInt4Affine, 32}; }));
  EXPECT_TRUE(
      refused([&](TileFourBitArgs& a) { a.minima = reinterpret_cast<const Bf16*>(memory.get()); }));
  EXPECT_TRUE(refused([&](TileFourBitArgs& a) {
    a.format.symmetric = true;
    a.zeros = memory.get();
  }));
  EXPECT_TRUE(refused([](TileFourBitArgs& a) { a.columns = 127; }));
  EXPECT_TRUE(refused([](TileFourBitArgs& a) { a.columns = 48; }));
  EXPECT_TRUE(refused([](TileFourBitArgs& a) { a.columns = 256; }));
  EXPECT_TRUE(refused([](TileFourBitArgs& a) { a.stride = 192; }));
  EXPECT_TRUE(refused([](TileFourBitArgs& a) { a.rows = 0; }));
  EXPECT_TRUE(refused([](TileFourBitArgs& a) { a.scales = nullptr; }));
  EXPECT_TRUE(refused([](TileFourBitArgs& a) { a.out = static_cast<uint8_t*>(a.out) + 8; }));
  EXPECT_EQ(LaunchDequantizeFourBit({.format = kFormats[0],
                                     .tiles = memory.get(),
                                     .rows = 64,
                                     .stride = 100,
                                     .out = reinterpret_cast<Bf16*>(memory.get())},
                                    nullptr),
            cudaErrorInvalidValue);
  CheckCuda(cudaDeviceSynchronize(), "tile");
}

}  // namespace
}  // namespace millrace::kernels
