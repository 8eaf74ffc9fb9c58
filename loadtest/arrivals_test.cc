#include "loadtest/arrivals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace millrace {
namespace {

std::vector<double> Times(const ArrivalOptions& options, int count, uint64_t seed = 3) {
  Arrivals arrivals(options, seed);
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    const std::optional<double> time = arrivals.Next();
    if (!time) break;
    times.push_back(*time);
  }
  return times;
}

// Returns the deviation of the gaps over their mean.
double Variation(const std::vector<double>& times) {
  double mean = 0;
  double squares = 0;
  for (size_t i = 1; i < times.size(); ++i) {
    const double gap = times[i] - times[i - 1];
    mean += gap / static_cast<double>(times.size() - 1);
    squares += gap * gap / static_cast<double>(times.size() - 1);
  }
  return std::sqrt(squares - mean * mean) / mean;
}

TEST(ArrivalsTest, PoissonHasItsRateAndAVariationOfOne) {
  const std::vector<double> times = Times({.rate = 50}, 100'000);
  EXPECT_NEAR(100'000 / times.back(), 50, 0.5);
  EXPECT_NEAR(Variation(times), 1, 0.02);
}

TEST(ArrivalsTest, BurstinessChangesTheVariationAndNotTheRate) {
  for (const double shape : {0.25, 4.0}) {
    const std::vector<double> times = Times({.rate = 50, .burstiness = shape}, 100'000);
    EXPECT_NEAR(100'000 / times.back(), 50, 1);
    EXPECT_NEAR(Variation(times), 1 / std::sqrt(shape), 0.05);
  }
}

TEST(ArrivalsTest, TheSameSeedGivesTheSameTimes) {
  EXPECT_EQ(Times({.rate = 5}, 100, 1), Times({.rate = 5}, 100, 1));
  EXPECT_NE(Times({.rate = 5}, 100, 1), Times({.rate = 5}, 100, 2));
}

TEST(ArrivalsTest, ConstantAndBurst) {
  EXPECT_THAT(Times({.kind = ArrivalKind::kConstant, .rate = 4}, 4),
              testing::ElementsAre(0, 0.25, 0.5, 0.75));
  EXPECT_THAT(Times({.kind = ArrivalKind::kBurst, .rate = 4, .burst_size = 2}, 5),
              testing::ElementsAre(0, 0, 0.5, 0.5, 1));
}

TEST(ArrivalsTest, ARampGrowsAndThenStays) {
  const ArrivalOptions options{
      .kind = ArrivalKind::kRamp, .rate = 300, .ramp_start = 100, .ramp_time = 100};
  const std::vector<double> times = Times(options, 40'000);
  const auto within = [&](double from, double to) {
    return std::count_if(times.begin(), times.end(),
                         [&](double time) { return time >= from && time < to; });
  };
  // Expected: the integral of 100 + 2 t. Four deviations of a Poisson count are allowed.
  EXPECT_NEAR(static_cast<double>(within(0, 50)), 7500, 4 * std::sqrt(7500));
  EXPECT_NEAR(static_cast<double>(within(50, 100)), 12500, 4 * std::sqrt(12500));
  EXPECT_NEAR(static_cast<double>(within(100, 120)), 6000, 4 * std::sqrt(6000));
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
}

TEST(ArrivalsTest, ARampMayFallOrStayOrBeginAtZero) {
  for (const double start : {0.0, 100.0, 300.0}) {
    const std::vector<double> times = Times(
        {.kind = ArrivalKind::kRamp, .rate = 100, .ramp_start = start, .ramp_time = 10}, 2000);
    EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
    EXPECT_TRUE(std::isfinite(times.back()));
    const double whole = (start + 100) / 2 * 10;
    EXPECT_NEAR(times.back(), 10 + (2000 - whole) / 100, 2);
  }
}

TEST(TraceTest, ReadsSecondsAndMooncakesObjects) {
  const auto trace = ParseTrace(
      "12.5\r\n\n{\"timestamp\": 11000, \"input_length\": 7, \"output_length\": 3, \"hash_ids\": "
      "[1]}\n"
      "{\"timestamp\": 13000.5}");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 3U);
  EXPECT_EQ((*trace)[0].time, 0);  // 11 s
  EXPECT_EQ((*trace)[0].input_len, 7);
  EXPECT_EQ((*trace)[0].output_len, 3);
  EXPECT_EQ((*trace)[1].time, 1.5);
  EXPECT_EQ((*trace)[1].input_len, std::nullopt);
  EXPECT_DOUBLE_EQ((*trace)[2].time, 2.0005);

  ArrivalOptions options{.kind = ArrivalKind::kTrace};
  options.trace = std::make_shared<std::vector<TraceEntry>>(*trace);
  EXPECT_EQ(Times(options, 10).size(), 3U);
}

TEST(TraceTest, RefusesOtherLinesByNumber) {
  for (const std::string_view line :
       {"x", "-1", "nan", "{}", "[]", "{\"timestamp\": \"1\"}", "{\"timestamp\": -1}",
        "{\"timestamp\": 1, \"input_length\": 0}", "{\"timestamp\": 1, \"output_length\": 1.5}",
        "{\"timestamp\": 1"}) {
    const auto trace = ParseTrace("1\n" + std::string(line));
    ASSERT_FALSE(trace.ok()) << line;
    EXPECT_THAT(std::string(trace.status().message()), testing::StartsWith("line 2: ")) << line;
  }
  EXPECT_FALSE(ParseTrace("\n\n").ok());
}

}  // namespace
}  // namespace millrace
