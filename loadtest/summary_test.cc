#include "loadtest/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Result Measured(double tokens_per_second, double ttft) {
  Result result{.concurrency = 8};
  result.duration = 10;
  result.completed = 20;
  result.request_throughput = 2;
  result.output_throughput = tokens_per_second;
  result.ttft = {.mean = ttft, .median = ttft, .percentiles = {{50, ttft}, {99, 2 * ttft}}};
  result.ttft.curve = {ttft};
  return result;
}

TEST(SummaryTest, OfARun) {
  Result result = Measured(100, 50);
  result.cancelled = 1;
  result.goodput = 1.5;
  result.attainment = 0.75;
  result.goals = "ttft:60";
  EXPECT_THAT(Summary(result),
              ElementsAre("20 of 21 requests were completed in 10.00 s: 2.00 requests and 100.0 "
                          "output tokens a second.",
                          "The time to first token was 50.00 ms in the median and 100.0 ms at p99.",
                          "75.0 % of the requests kept the goals (ttft:60)."));
}

TEST(SummaryTest, OfARunWithoutAnAnswer) {
  EXPECT_THAT(Summary({}), ElementsAre("0 of 0 requests were completed in 0.00 s: 0.00 requests "
                                       "and 0.00 output tokens a second."));
}

TEST(SummaryTest, OfASweep) {
  Result first = Measured(100, 50);
  Result second = Measured(150, 80);
  second.concurrency = 16;
  EXPECT_THAT(
      SweepSummary({first, second}, -1),
      ElementsAre(
          "The most output tokens a second, 150.0, came at 16 requests at once, with a time to "
          "first token of 80.00 ms in the median and 160.0 ms at p99."));
  first.goals = second.goals = "ttft:60";
  EXPECT_EQ(SweepSummary({first, second}, -1).front(),
            "None of 2 loads holds the goals (ttft:60).");
  EXPECT_EQ(SweepSummary({first, second}, 0).front(),
            "The highest of 2 loads that holds the goals (ttft:60) is 8 requests at once, with "
            "100.0 output tokens a second.");
}

TEST(SummaryTest, OfAComparison) {
  const Result a = Measured(100, 50);
  EXPECT_THAT(ComparisonSummary(a, a, "new"), ElementsAre("No figure differs by more than 2 %."));
  const std::vector<std::string> sentences = ComparisonSummary(a, Measured(120, 60), "new");
  ASSERT_EQ(sentences.size(), 2U);
  EXPECT_EQ(sentences[0], "new is better in: Output tokens a second (+20.0 %).");
  EXPECT_THAT(sentences[1],
              HasSubstr("new is worse in: Time to first token, mean, ms (+20.0 %), "));
}

}  // namespace
}  // namespace millrace
