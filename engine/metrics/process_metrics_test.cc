#include "engine/metrics/process_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <ctime>
#include <map>
#include <string>

namespace millrace {
namespace {

std::map<std::string, double> Collect() {
  std::map<std::string, double> values;
  for (const prometheus::MetricFamily& family : CollectProcessMetrics()) {
    EXPECT_EQ(family.metric.size(), 1u) << family.name;
    values[family.name] = family.type == prometheus::MetricType::Counter
                              ? family.metric[0].counter.value
                              : family.metric[0].gauge.value;
  }
  return values;
}

TEST(ProcessMetricsTest, AreThoseOfThisProcess) {
  std::map<std::string, double> values = Collect();
  EXPECT_EQ(values.size(), 6u);
  const auto now = static_cast<double>(time(nullptr));
  EXPECT_LE(values["process_start_time_seconds"], now + 1);
  EXPECT_GE(values["process_start_time_seconds"], now - 3600);
  EXPECT_GE(values["process_cpu_seconds_total"], 0);
  EXPECT_GT(values["process_resident_memory_bytes"], 1 << 20);
  EXPECT_GT(values["process_virtual_memory_bytes"], values["process_resident_memory_bytes"]);
  EXPECT_GE(values["process_max_fds"], values["process_open_fds"]);
}

TEST(ProcessMetricsTest, SinceTheStart) {
  const std::optional<double> first = SecondsSinceProcessStart();
  const std::optional<double> second = SecondsSinceProcessStart();
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_GE(*first, -0.02);  // the start is known to a hundredth of a second
  EXPECT_LT(*first, 3600);
  EXPECT_LE(*first, *second);
}

TEST(ProcessMetricsTest, CountOpenFiles) {
  const double before = Collect()["process_open_fds"];
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  EXPECT_EQ(Collect()["process_open_fds"], before + 2);
  close(fds[0]);
  close(fds[1]);
}

}  // namespace
}  // namespace millrace
