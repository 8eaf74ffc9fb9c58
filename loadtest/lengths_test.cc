#include "loadtest/lengths.h"

#include <gtest/gtest.h>

#include <cmath>

namespace millrace {
namespace {

struct Moments {
  double mean = 0;
  double deviation = 0;
  int64_t least = 1 << 30;
  int64_t most = 0;
};

Moments Draws(std::string_view text) {
  const absl::StatusOr<Lengths> lengths = Lengths::Parse(text);
  EXPECT_TRUE(lengths.ok()) << lengths.status();
  Random random(7, 0);
  Moments moments;
  double squares = 0;
  constexpr int kDraws = 100'000;
  for (int i = 0; i < kDraws; ++i) {
    const int64_t drawn = lengths->Draw(random);
    moments.least = std::min(moments.least, drawn);
    moments.most = std::max(moments.most, drawn);
    moments.mean += static_cast<double>(drawn) / kDraws;
    squares += static_cast<double>(drawn) * static_cast<double>(drawn) / kDraws;
  }
  moments.deviation = std::sqrt(squares - moments.mean * moments.mean);
  return moments;
}

TEST(LengthsTest, DrawsWhatTheTextSays) {
  EXPECT_EQ(Draws("128").least, 128);
  EXPECT_EQ(Draws("fixed:128").most, 128);

  const Moments uniform = Draws("uniform:10:20");
  EXPECT_EQ(uniform.least, 10);
  EXPECT_EQ(uniform.most, 20);
  EXPECT_NEAR(uniform.mean, 15, 0.05);

  const Moments normal = Draws("normal:500:50");
  EXPECT_NEAR(normal.mean, 500, 1);
  EXPECT_NEAR(normal.deviation, 50, 1);

  // The mean of a lognormal is its median times exp(sigma^2 / 2).
  const Moments lognormal = Draws("lognormal:200:0.5");
  EXPECT_NEAR(lognormal.mean, 200 * std::exp(0.125), 2);
}

TEST(LengthsTest, KeepsDrawsWithinTheAllowed) {
  EXPECT_EQ(Draws("normal:2:100").least, 1);
  EXPECT_EQ(Draws("lognormal:1000000:10").most, 1'000'000);
}

TEST(LengthsTest, RefusesOtherTexts) {
  for (const std::string_view text :
       {"", "0", "-1", "1.5", "1000001", "uniform:20:10", "uniform:1", "uniform:1:2:3",
        "normal:0:1", "normal:5:-1", "normal:x:1", "lognormal:5:11", "zipf:1:2", "nan",
        "uniform:1.5:2", "1e400"}) {
    const absl::StatusOr<Lengths> lengths = Lengths::Parse(text);
    EXPECT_FALSE(lengths.ok()) << text;
  }
}

TEST(LengthsTest, PrintsWhatItReads) {
  for (const std::string_view text :
       {"128", "uniform:10:20", "normal:500:50", "lognormal:200:0.5"}) {
    EXPECT_EQ(Lengths::Parse(text)->ToString(), text);
  }
}

}  // namespace
}  // namespace millrace
