#include "loadtest/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "loadtest/random.h"

namespace millrace {
namespace {

TEST(HistogramTest, QuantilesAreWithinTheirError) {
  Random random(1, 0);
  Histogram histogram;
  std::vector<double> values;
  for (int i = 0; i < 50'000; ++i) {
    values.push_back(std::exp(random.Normal() * 2) * 1e-3);
    histogram.Add(values.back());
  }
  std::sort(values.begin(), values.end());
  for (const double share : {0.01, 0.1, 0.5, 0.9, 0.99, 0.999}) {
    const double exact = values[static_cast<size_t>(std::ceil(share * 50'000)) - 1];
    EXPECT_NEAR(histogram.Quantile(share), exact, exact * 0.004) << share;
  }
  EXPECT_EQ(histogram.Quantile(1), values.back());
  EXPECT_EQ(histogram.Max(), values.back());
}

TEST(HistogramTest, MeanAndDeviationAreExact) {
  Histogram histogram;
  histogram.Add(1, 3);  // 1 1 1 5
  histogram.Add(5, 1);
  EXPECT_DOUBLE_EQ(histogram.Mean(), 2);
  EXPECT_DOUBLE_EQ(histogram.Deviation(), std::sqrt(3));
  EXPECT_DOUBLE_EQ(histogram.weight(), 4);
}

TEST(HistogramTest, MergingIsAddingBoth) {
  Histogram a, b, both;
  Random random(2, 0);
  for (int i = 0; i < 1000; ++i) {
    const double value = random.Exponential();
    const double weight = random.Uniform();
    (i % 3 == 0 ? a : b).Add(value, weight);
    both.Add(value, weight);
  }
  a.Merge(b);
  a.Merge(Histogram());
  EXPECT_NEAR(a.Mean(), both.Mean(), 1e-12);
  EXPECT_NEAR(a.Deviation(), both.Deviation(), 1e-12);
  for (const double share : {0.1, 0.5, 0.99}) EXPECT_EQ(a.Quantile(share), both.Quantile(share));
}

TEST(HistogramTest, TakesExtremes) {
  Histogram histogram;
  EXPECT_EQ(histogram.Quantile(0.5), 0);
  EXPECT_EQ(histogram.Deviation(), 0);
  histogram.Add(0);
  histogram.Add(-1);
  EXPECT_LE(histogram.Quantile(0.5), 1e-6);
  histogram.Add(1e12);
  EXPECT_EQ(histogram.Max(), 1e12);
  EXPECT_EQ(histogram.Quantile(1), 1e12);
}

TEST(SortedQuantileTest, IsNumpysPercentile) {
  const std::vector<double> values = {1, 2, 4, 8};
  EXPECT_DOUBLE_EQ(SortedQuantile(values, 0), 1);
  EXPECT_DOUBLE_EQ(SortedQuantile(values, 0.5), 3);
  EXPECT_DOUBLE_EQ(SortedQuantile(values, 0.9), 6.8);  // numpy.percentile([1, 2, 4, 8], 90)
  EXPECT_DOUBLE_EQ(SortedQuantile(values, 1), 8);
  EXPECT_EQ(SortedQuantile({}, 0.5), 0);
}

TEST(PlotSharesTest, Ascend) {
  EXPECT_TRUE(std::is_sorted(PlotShares().begin(), PlotShares().end()));
  EXPECT_EQ(PlotShares().front(), 0);
  EXPECT_EQ(PlotShares().back(), 1);
}

}  // namespace
}  // namespace millrace
