#include "engine/metrics/metrics_text.h"

#include <gtest/gtest.h>
#include <prometheus/registry.h>
#include <prometheus/summary.h>

#include <limits>

namespace millrace {
namespace {

TEST(MetricsTextTest, BoundsAreWrittenAsPythonDoes) {
  EXPECT_EQ(BucketBound(0.0005), "0.0005");
  EXPECT_EQ(BucketBound(0.00025), "0.00025");
  EXPECT_EQ(BucketBound(0.00005), "5e-05");
  EXPECT_EQ(BucketBound(0), "0.0");
  EXPECT_EQ(BucketBound(0.5), "0.5");
  EXPECT_EQ(BucketBound(1), "1.0");
  EXPECT_EQ(BucketBound(2.5), "2.5");
  EXPECT_EQ(BucketBound(2560), "2560.0");
  EXPECT_EQ(BucketBound(100000), "100000.0");
  EXPECT_EQ(BucketBound(1000000), "1e+06");
  EXPECT_EQ(BucketBound(2000000), "2e+06");
  EXPECT_EQ(BucketBound(std::numeric_limits<double>::infinity()), "+Inf");
}

TEST(MetricsTextTest, EveryKind) {
  prometheus::MetricFamily histogram{"h", "a \"b\"\\\n", prometheus::MetricType::Histogram, {{}}};
  histogram.metric[0].label = {{"a", "x\"y\\z\n"}};
  histogram.metric[0].histogram = {.sample_count = 3, .sample_sum = 1.5, .bucket = {{2, 1}}};
  prometheus::MetricFamily summary{"s", "", prometheus::MetricType::Summary, {{}}};
  summary.metric[0].summary = {.sample_count = 2, .sample_sum = 7, .quantile = {}};
  prometheus::MetricFamily gauge{"g", "", prometheus::MetricType::Gauge, {{}}};
  gauge.metric[0].gauge.value = std::numeric_limits<double>::quiet_NaN();
  const prometheus::MetricFamily empty{"e", "", prometheus::MetricType::Counter, {}};
  EXPECT_EQ(MetricsText({histogram, summary, gauge, empty}),
            "# HELP h a \"b\"\\\\\\n\n"
            "# TYPE h histogram\n"
            "h_bucket{a=\"x\\\"y\\\\z\\n\",le=\"1.0\"} 2\n"
            "h_bucket{a=\"x\\\"y\\\\z\\n\",le=\"+Inf\"} 3\n"
            "h_sum{a=\"x\\\"y\\\\z\\n\"} 1.5\n"
            "h_count{a=\"x\\\"y\\\\z\\n\"} 3\n"
            "# HELP s \n# TYPE s summary\ns_sum 7\ns_count 2\n"
            "# HELP g \n# TYPE g gauge\ng NaN\n");
}

}  // namespace
}  // namespace millrace
