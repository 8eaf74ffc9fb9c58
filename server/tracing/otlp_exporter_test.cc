#include "server/tracing/otlp_exporter.h"

#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <string>
#include <utility>
#include <vector>

namespace millrace {
namespace {

using Headers = std::vector<std::pair<std::string, std::string>>;

TEST(OtlpExporterTest, HeadersAreReadAsOpenTelemetryWritesThem) {
  EXPECT_EQ(ParseOtlpHeaders("api-key=secret, authorization=Basic%20YTpi"),
            (Headers{{"api-key", "secret"}, {"authorization", "Basic YTpi"}}));
  EXPECT_EQ(ParseOtlpHeaders("a=b=c,d=%4"), (Headers{{"a", "b=c"}, {"d", "%4"}}));
  EXPECT_EQ(ParseOtlpHeaders(""), Headers{});
  EXPECT_EQ(ParseOtlpHeaders("a,=b"), Headers{});
  EXPECT_EQ(ParseOtlpHeaders("a=b%0d%0ac: d"), Headers{});
}

double Count(prometheus::Registry& registry, const std::string& result) {
  for (const auto& family : registry.Collect()) {
    for (const auto& metric : family.metric) {
      if (family.name == "millrace_trace_spans_total" && metric.label[0].value == result) {
        return metric.counter.value;
      }
    }
  }
  return -1;
}

TEST(OtlpExporterTest, WhatNobodyTakesIsDroppedAndCounted) {
  prometheus::Registry registry;
  {
    OtlpExporter exporter({.endpoint = "http://127.0.0.1:9",  // discard: nobody listens
                           .period = std::chrono::hours(1)},
                          registry);
    RequestSpan unsampled;
    unsampled.parent.emplace();
    exporter.OnSpan(unsampled);
    for (size_t i = 0; i < OtlpExporter::kMaxWaiting + 3; ++i) exporter.OnSpan(RequestSpan());
  }  // which does not wait for the period
  EXPECT_EQ(Count(registry, "exported"), 0);
  // The first may have left the queue by the time it was full.
  const double dropped = Count(registry, "dropped");
  EXPECT_EQ(dropped, OtlpExporter::kMaxWaiting + 3);
}

TEST(OtlpExporterTest, WhatComesAfterTheCloseIsDropped) {
  prometheus::Registry registry;
  OtlpExporter exporter({.endpoint = "http://127.0.0.1:9"}, registry);
  exporter.Close();
  exporter.OnSpan(RequestSpan());
  EXPECT_EQ(Count(registry, "dropped"), 1);
}

}  // namespace
}  // namespace millrace
