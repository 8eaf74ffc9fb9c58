#include "loadtest/result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "loadtest/compare.h"
#include "loadtest/sweep.h"
#include "loadtest/text_report.h"

namespace millrace {
namespace {

using testing::HasSubstr;

// A request that was due at `due`, with its first token after `ttft` and ten more, a `gap` apart.
RequestRecord Completed(double due, double ttft, double gap) {
  RequestRecord record{.outcome = Outcome::kCompleted, .intended = due, .sent = due};
  record.prompt_tokens = 20;
  record.output_tokens = 11;
  record.first = due + ttft;
  record.last = record.end = record.first + 10 * gap;
  return record;
}

RunResult ThreeRequests() {
  RunResult run;
  run.measurements.records = {Completed(1, 0.3, 0.01), Completed(0, 0.1, 0.02)};
  run.measurements.records.push_back({.outcome = Outcome::kFailed,
                                      .intended = 0.5,
                                      .sent = 0.5,
                                      .end = 0.6,
                                      .error = "no\x1b[2J"});
  run.measurements.token_gaps.Add(0.01, 10);
  run.measurements.token_gaps.Add(0.02, 10);
  run.measurements.Second(0.2).tokens = 11;
  run.measurements.Second(1.2).tokens = 11;
  run.duration = 2;
  run.threads = 1;
  return run;
}

Result Summary(const Options& options = {}) {
  RunResult run = ThreeRequests();
  return Summarize(options, run);
}

TEST(ResultTest, SumsUp) {
  Options options;
  options.goals = {.ttft = 200};
  const Result result = Summary(options);
  EXPECT_EQ(result.completed, 2);
  EXPECT_EQ(result.failed, 1);
  EXPECT_EQ(result.input_tokens, 40);
  EXPECT_EQ(result.output_tokens, 22);
  EXPECT_DOUBLE_EQ(result.output_throughput, 11);
  EXPECT_DOUBLE_EQ(result.total_throughput, 31);
  EXPECT_NEAR(result.ttft.mean, 200, 1e-9);
  EXPECT_NEAR(result.ttft.deviation, 100, 1e-9);
  EXPECT_NEAR(result.tpot.median, 15, 1e-9);
  EXPECT_NEAR(result.itl.mean, 15, 1e-9);
  EXPECT_DOUBLE_EQ(*result.goodput, 0.5);
  EXPECT_NEAR(*result.attainment, 1.0 / 3, 1e-9);  // of all three: a failure is not good
  EXPECT_EQ(result.peak_concurrency, 1);
  ASSERT_EQ(result.timeline.size(), 2U);
  EXPECT_EQ(result.timeline[1].tokens_per_second, 11);
  EXPECT_NEAR(result.timeline[1].ttft_median, 300, 1e-9);
}

TEST(ResultTest, CancelledAndSlowRequestsDoNotCountAgainstTheServer) {
  RunResult run;
  run.measurements.records = {Completed(0, 0.1, 0.01)};
  run.measurements.records.push_back({.outcome = Outcome::kCancelled});
  RequestRecord slow = Completed(0, 50, 1);
  slow.slow = true;
  run.measurements.records.push_back(slow);
  run.duration = 1;
  Options options;
  options.goals = {.ttft = 200};
  const Result result = Summarize(options, run);
  EXPECT_DOUBLE_EQ(*result.attainment, 1);
  EXPECT_EQ(result.completed, 2);
  EXPECT_NEAR(result.ttft.mean, 100, 1e-9);
}

TEST(ResultTest, ARunWithoutRequestsHasFigures) {
  RunResult run;
  const Result result = Summarize({}, run);
  EXPECT_EQ(result.request_throughput, 0);
  EXPECT_EQ(result.ttft.mean, 0);
  EXPECT_FALSE(TextReport(result).empty());
  EXPECT_TRUE(FromJson(nlohmann::json::parse(Dump(ToJson(result)))).ok());
}

TEST(ResultTest, JsonHasTheKeysOfVllm) {
  Options options;
  options.goals = {.ttft = 200};
  options.percentiles = {99, 99.9};
  const nlohmann::json json = nlohmann::json::parse(Dump(ToJson(Summary(options))));
  for (const char* key : {"date",
                          "endpoint_type",
                          "backend",
                          "label",
                          "model_id",
                          "tokenizer_id",
                          "num_prompts",
                          "request_rate",
                          "max_concurrency",
                          "duration",
                          "completed",
                          "failed",
                          "total_input_tokens",
                          "total_output_tokens",
                          "request_throughput",
                          "request_goodput",
                          "output_throughput",
                          "total_token_throughput",
                          "max_output_tokens_per_s",
                          "max_concurrent_requests",
                          "mean_ttft_ms",
                          "median_ttft_ms",
                          "std_ttft_ms",
                          "p99_ttft_ms",
                          "p99.9_ttft_ms",
                          "mean_tpot_ms",
                          "median_tpot_ms",
                          "std_tpot_ms",
                          "p99_tpot_ms",
                          "mean_itl_ms",
                          "median_itl_ms",
                          "std_itl_ms",
                          "p99_itl_ms",
                          "mean_e2el_ms",
                          "median_e2el_ms",
                          "std_e2el_ms",
                          "p99_e2el_ms",
                          "mean_client_queue_time_ms"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["request_rate"], "inf");
  EXPECT_EQ(json["num_prompts"], 3);
}

TEST(ResultTest, DetailsAreInTheOrderOfSending) {
  RunResult run = ThreeRequests();
  nlohmann::ordered_json json = ToJson(Summarize({}, run));
  AddDetails(run, json);
  ASSERT_EQ(json["ttfts"].size(), 3U);
  EXPECT_NEAR(json["ttfts"][0].get<double>(), 0.1, 1e-9);
  EXPECT_EQ(json["ttfts"][1], 0);
  EXPECT_EQ(json["output_lens"][1], 0);
  EXPECT_NE(json["errors"][1], "");
  EXPECT_NEAR(json["ttfts"][2].get<double>(), 0.3, 1e-9);
}

TEST(ResultTest, WhatIsWrittenIsRead) {
  Options options;
  options.goals = {.ttft = 200};
  options.label = "\xff<label>";
  const Result result = Summary(options);
  const std::string text = Dump(ToJson(result));
  const auto read = FromJson(nlohmann::json::parse(text));
  ASSERT_TRUE(read.ok()) << read.status();
  Result back = *read;
  EXPECT_EQ(back.label, "\xef\xbf\xbd<label>");
  EXPECT_EQ(back.ttft.curve, result.ttft.curve);
  EXPECT_EQ(back.itl.curve, result.itl.curve);
  EXPECT_EQ(back.ttft.percentiles, result.ttft.percentiles);
  EXPECT_EQ(back.timeline.size(), result.timeline.size());
  EXPECT_EQ(back.errors.front().second, 1);
  EXPECT_EQ(back.goodput, result.goodput);
  EXPECT_EQ(back.attainment, result.attainment);
}

TEST(ResultTest, ReadsVllmsResults) {
  const auto result = FromJson(nlohmann::json::parse(R"({
    "date": "20260101-000000", "backend": "openai", "label": null, "model_id": "m",
    "request_rate": "inf", "max_concurrency": null, "duration": 10.5, "completed": 3, "failed": 0,
    "request_goodput": null, "output_throughput": 12.5, "mean_ttft_ms": 5, "p99_ttft_ms": 9,
    "ttfts": [0.001, 0.002, 0.003], "itls": [[0.01, 0.02], [], [0.03]]})"));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->rate, std::nullopt);
  EXPECT_EQ(result->ttft.percentiles.front().second, 9);
  EXPECT_NEAR(result->ttft.curve[50], 2, 1e-9);
  EXPECT_NEAR(result->itl.curve.back(), 30, 1e-9);
}

TEST(ResultTest, RefusesOtherFiles) {
  for (
      const char* text :
      {"[]", "{}", R"({"duration": 1})", R"({"duration": "1", "completed": 1})",
       R"({"duration": 1, "completed": 1, "model_id": 5})",
       R"({"duration": 1, "completed": 1, "ttfts": {}})",
       R"({"duration": 1, "completed": 1, "millrace_loadtest": 1})",
       R"({"duration": 1, "completed": 1, "millrace_loadtest": {"timeline": [1]}})",
       R"({"duration": 1, "completed": 1, "millrace_loadtest": {"error_counts": [{"count": "x"}]}})"}) {
    EXPECT_FALSE(FromJson(nlohmann::json::parse(text)).ok()) << text;
  }
}

TEST(TextReportTest, ErrorsCannotCommandTheTerminal) {
  const std::string text = TextReport(Summary());
  EXPECT_THAT(text, HasSubstr("1 x no\\x1b[2J"));
  EXPECT_EQ(text.find('\x1b'), text.npos);
}

TEST(CompareTest, JudgesByTheFiguresKind) {
  Result a = Summary();
  Result b = Summary();
  b.output_throughput = a.output_throughput * 1.5;
  b.ttft.mean = a.ttft.mean * 1.5;
  b.tpot.mean = a.tpot.mean * 1.01;
  const std::string text = ComparisonText(a, b);
  EXPECT_THAT(text,
              testing::ContainsRegex("Output tokens a second +11.00 +16.50 +\\+50.0 %  better"));
  EXPECT_THAT(text, testing::ContainsRegex(
                        "Time to first token, mean, ms +[0-9.]+ +[0-9.]+ +\\+50.0 %  worse"));
  EXPECT_THAT(text, testing::ContainsRegex(
                        "Time per output token, mean, ms +[0-9.]+ +[0-9.]+ +\\+1.0 %\n"));
  EXPECT_EQ(text.find("They differ"), text.npos);
  b.input_tokens *= 2;
  b.load = "another";
  EXPECT_THAT(ComparisonText(a, b), HasSubstr("They differ in load"));
  EXPECT_THAT(ComparisonText(a, b), HasSubstr("They differ in tokens a request"));
}

TEST(FindHighestRateTest, ComesCloseToTheLimit) {
  for (const double limit : {0.03, 0.9, 1.0, 37.0, 5000.0}) {
    std::vector<double> tried;
    const auto found = FindHighestRate(1, 100'000, 40, [&](double rate) -> absl::StatusOr<bool> {
      tried.push_back(rate);
      return rate <= limit;
    });
    ASSERT_TRUE(found.ok());
    ASSERT_TRUE(found->has_value()) << limit;
    EXPECT_LE(**found, limit);
    EXPECT_GE(**found, limit / 1.06);
    EXPECT_LT(tried.size(), 25U);
  }
}

TEST(FindHighestRateTest, EndsAtItsBounds) {
  const auto all = [](double) -> absl::StatusOr<bool> { return true; };
  const auto none = [](double) -> absl::StatusOr<bool> { return false; };
  const auto broken = [](double) -> absl::StatusOr<bool> { return absl::InternalError("x"); };
  EXPECT_EQ(**FindHighestRate(1, 100, 40, all), 100);
  EXPECT_EQ(**FindHighestRate(1, 100'000, 3, all), 4);
  EXPECT_EQ(*FindHighestRate(1, 100, 40, none), std::nullopt);
  EXPECT_FALSE(FindHighestRate(1, 100, 40, broken).ok());
}

}  // namespace
}  // namespace millrace
