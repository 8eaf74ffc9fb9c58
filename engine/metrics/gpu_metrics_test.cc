#include "engine/metrics/gpu_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/metrics/metrics_text.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A library with NVML's functions and two GPUs, the second of which tells no power
// (nvml_stand_in.cc): machines without the driver read through the same calls.
TEST(GpuMetricsTest, ReadsWhatEachGpuTells) {
  const auto gpus = GpuMetrics::Open(MILLRACE_NVML_STAND_IN);
  ASSERT_NE(gpus, nullptr);
  const std::string text = MetricsText(gpus->Collect());
  EXPECT_THAT(text, HasSubstr("millrace_gpu_memory_used_bytes{gpu=\"0\",uuid=\"GPU-0\"} 1024\n"));
  EXPECT_THAT(text, HasSubstr("millrace_gpu_memory_total_bytes{gpu=\"1\",uuid=\"GPU-1\"} 4096\n"));
  EXPECT_THAT(text, HasSubstr("millrace_gpu_power_watts{gpu=\"0\",uuid=\"GPU-0\"} 350.5\n"));
  EXPECT_THAT(text, Not(HasSubstr("millrace_gpu_power_watts{gpu=\"1\"")));
  EXPECT_THAT(text, HasSubstr("millrace_gpu_utilization_ratio{gpu=\"0\",uuid=\"GPU-0\"} 0.75\n"));
  EXPECT_THAT(text, HasSubstr("millrace_gpu_temperature_celsius{gpu=\"1\",uuid=\"GPU-1\"} 41\n"));
}

TEST(GpuMetricsTest, WithoutTheLibraryThereIsNothing) {
  EXPECT_EQ(GpuMetrics::Open("libnone-such.so.1"), nullptr);
  EXPECT_EQ(GpuMetrics::Open("libm.so.6"), nullptr);  // has none of its functions
}

}  // namespace
}  // namespace millrace
