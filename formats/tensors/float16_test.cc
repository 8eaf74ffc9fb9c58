#include "formats/tensors/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace millrace {
namespace {

TEST(Float16Test, EveryHalfSurvivesTheWayThroughFloat) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const float value = HalfToFloat(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(value))));
    } else {
      ASSERT_EQ(FloatToHalf(value), half);
    }
  }
}

TEST(Float16Test, KnownValues) {
  EXPECT_EQ(HalfToFloat(0x3c00), 1.0f);
  EXPECT_EQ(HalfToFloat(0xc000), -2.0f);
  EXPECT_EQ(HalfToFloat(0x7bff), 65504.0f);
  EXPECT_EQ(HalfToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(HalfToFloat(0x7c00), std::numeric_limits<float>::infinity());
}

TEST(Float16Test, RoundsToNearestWithTiesToEven) {
  // Between each two neighbours: just under the middle, the middle, just over.
  for (uint16_t half = 0; half < 0x7bff; ++half) {
    const float low = HalfToFloat(half), high = HalfToFloat(half + 1);
    const float middle = (low + high) / 2;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, low)), half);
    ASSERT_EQ(FloatToHalf(middle), half % 2 == 0 ? half : half + 1);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, high)), half + 1);
    ASSERT_EQ(FloatToHalf(-middle), 0x8000 | (half % 2 == 0 ? half : half + 1));
  }
  EXPECT_EQ(FloatToHalf(65519.9f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(1e30f), 0x7c00);
  EXPECT_EQ(FloatToHalf(1e-30f), 0);
}

}  // namespace
}  // namespace millrace
