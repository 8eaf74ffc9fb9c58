#include "executors/weights/quantize.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "formats/tensors/dequantize.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

std::vector<float> Back(TensorType type, const std::vector<float>& row) {
  const TensorTypeTraits& traits = Traits(type);
  std::vector<uint8_t> bytes(row.size() / traits.block_elements * traits.block_bytes + 1, 0x55);
  QuantizeRow(type, row, bytes.data());
  EXPECT_EQ(bytes.back(), 0x55) << "wrote beyond the row";
  std::vector<float> back(row.size());
  Dequantize(type, absl::MakeConstSpan(bytes).first(bytes.size() - 1), absl::MakeSpan(back));
  return back;
}

TEST(QuantizeTest, NormalWeightsLoseAsMuchAsIsSaid) {
  std::mt19937 random(3);
  std::normal_distribution<float> draw(0, 0.02f);
  std::vector<float> row(32 * 1000);
  for (float& x : row) x = draw(random);
  const auto relative_error = [&](TensorType type) {
    const std::vector<float> back = Back(type, row);
    double off = 0, all = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      off += std::pow(static_cast<double>(back[i]) - row[i], 2);
      all += std::pow(static_cast<double>(row[i]), 2);
    }
    return std::sqrt(off / all);
  };
  EXPECT_NEAR(relative_error(TensorType::kQ8_0), 0.006, 0.001);
  EXPECT_NEAR(relative_error(TensorType::kQ4_1), 0.07, 0.01);
}

TEST(QuantizeTest, WhatBlocksCanSayTheySay) {
  std::vector<float> row(64);
  for (int i = 0; i < 32; ++i) row[i] = static_cast<float>(i % 16) * 0.25f - 1.5f;
  EXPECT_EQ(Back(TensorType::kQ4_1, row), row);
  for (int i = 0; i < 64; ++i) row[i] = i < 32 ? static_cast<float>(i * 4 - 127) * 0.5f : 0.0f;
  EXPECT_EQ(Back(TensorType::kQ8_0, row), row);
  for (const TensorType type : {TensorType::kQ8_0, TensorType::kQ4_1}) {
    const std::vector<float> zeros(32);
    EXPECT_EQ(Back(type, zeros), zeros);
    const std::vector<float> back = Back(type, std::vector<float>(32, -0.125f));
    for (const float x : back) EXPECT_NEAR(x, -0.125f, 1e-4);
  }
}

TEST(QuantizeTest, WhatIsNotFiniteMakesItsBlockSo) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e30f}) {
    for (const TensorType type : {TensorType::kQ8_0, TensorType::kQ4_1}) {
      for (const int at : {0, 7, 31}) {
        std::vector<float> row(64, 1.0f);
        row[at] = bad;
        const std::vector<float> back = Back(type, row);
        for (int i = 0; i < 32; ++i) EXPECT_FALSE(std::isfinite(back[i])) << bad << " " << i;
        for (int i = 32; i < 64; ++i) EXPECT_NEAR(back[i], 1.0f, 1e-3);
      }
    }
  }
}

}  // namespace
}  // namespace millrace
