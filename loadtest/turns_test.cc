#include "loadtest/turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "loadtest/prompt_sources.h"
#include "loadtest/result.h"
#include "loadtest/text_report.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RequestRecord Turn(uint32_t turn, double ttft, int64_t prompt, int64_t cached, int64_t before) {
  RequestRecord record{.turn = turn, .outcome = Outcome::kCompleted, .intended = 1, .sent = 1};
  record.first = 1 + ttft;
  record.end = 2 + ttft;
  record.prompt_tokens = prompt;
  record.cached_tokens = cached;
  record.output_tokens = 4;
  record.prompt_before = before;
  return record;
}

// Two sessions with the same beginning, and a third without one, whose second turn fails. One of
// the two branches into three: the second shares an answer with the first, and the third is
// cancelled.
std::vector<RequestRecord> ThreeSessions() {
  std::vector<RequestRecord> records = {Turn(0, 0.1, 100, 0, 0),     Turn(0, 0.3, 100, 80, 0),
                                        Turn(0, 0.2, 50, 0, 0),      Turn(1, 0.4, 150, 96, 100),
                                        Turn(1, 0.2, 160, 128, 100), Turn(1, 0, 0, 0, 50),
                                        Turn(1, 0, 0, 0, 100)};
  records[0].beginning = records[1].beginning = 7;
  records[0].own_share = records[1].own_share = 0.2;
  records[3].cached_by_tier = {{"local", 64}, {"host", 32}};
  records[4].cached_by_tier = {{"host", 128}};
  records[4].own_share = 0.75;
  records[5].outcome = Outcome::kFailed;
  records[6].outcome = Outcome::kCancelled;
  return records;
}

TEST(TurnsTest, SumsUpByTurn) {
  const TurnTable table = SumByTurn(ThreeSessions(), true);
  ASSERT_EQ(table.rows.size(), 2U);
  const TurnSums& first = table.rows[0];
  EXPECT_EQ(first.requests, 3);
  EXPECT_NEAR(first.ttft_median, 200, 1e-9);
  EXPECT_NEAR(first.latency_p99, 1298, 1e-6);
  EXPECT_EQ(first.prompt_tokens, 250);
  EXPECT_EQ(first.computed_tokens(), 170);
  // The beginning that two have in common is new once.
  EXPECT_EQ(first.new_tokens, 100 + 20 + 50);
  const TurnSums& second = table.rows[1];
  EXPECT_EQ(second.requests, 4);
  EXPECT_EQ(second.completed, 2);
  EXPECT_EQ(second.failed, 1);
  EXPECT_EQ(second.cut(), 1);
  EXPECT_NEAR(second.ttft_median, 300, 1e-9);
  EXPECT_EQ(second.new_tokens, 50 + 45);
  EXPECT_EQ(second.output_tokens, 8);
  EXPECT_THAT(table.tiers, ElementsAre("host", "local"));
  EXPECT_THAT(second.cached_by_tier, ElementsAre(160, 64));
  EXPECT_THAT(first.cached_by_tier, ElementsAre(0, 0));
  EXPECT_EQ(table.all.requests, 7);
  EXPECT_EQ(table.all.computed_tokens(), 170 + 86);
  EXPECT_NEAR(*table.ComputedPerNew(), 256.0 / 265, 1e-9);
  EXPECT_THAT(TurnTitles(table),
              ElementsAre("turn", "requests", "failed", "cut", "TTFT p50", "p99", "E2EL p50", "p99",
                          "prompt", "cached", "host", "local", "computed", "new", "output"));
  EXPECT_THAT(TurnCells(table, 1), ElementsAre("2", "4", "1", "1", "300.0", "398.0", "1300", "1398",
                                               "310", "224", "160", "64", "86", "95", "8"));
  EXPECT_EQ(TurnCells(table, 2)[0], "all");
}

TEST(TurnsTest, RunsOfSingleRequestsHaveNoTable) {
  EXPECT_TRUE(SumByTurn({Turn(0, 0.1, 9, 0, 0)}, false).rows.empty());
}

TEST(TurnsTest, LateTurnsShareARow) {
  std::vector<RequestRecord> records;
  for (uint32_t turn = 0; turn < 100; ++turn) records.push_back(Turn(turn, 0.1, 10, 0, 0));
  const TurnTable table = SumByTurn(records, false);
  ASSERT_EQ(table.rows.size(), 64U);
  EXPECT_EQ(table.NameOf(0), "1");
  EXPECT_EQ(table.NameOf(63), "64+");
  EXPECT_EQ(table.rows[63].requests, 37);
  EXPECT_FALSE(table.ComputedPerNew());
  EXPECT_EQ(TurnTitles(table).size(), TurnCells(table, 64).size());
}

TEST(TurnsTest, EachReportHasThem) {
  RunResult run;
  run.measurements.records = ThreeSessions();
  run.measurements.sessions = {.begun = 3, .completed = 1, .failed = 1};
  run.prompt_sources = {{"cached, host", 160}, {"local_compute", 256}};
  run.duration = 3;
  Options options;
  options.command = LoadCommand::kReplay;
  const Result result = Summarize(options, run);
  const std::string text = TextReport(result);
  EXPECT_THAT(text, HasSubstr("Sessions                             1 completed, 1 failed, 1 cut"));
  EXPECT_THAT(text, HasSubstr("Computed are 0.97 times the new tokens of prompts."));
  EXPECT_THAT(text, HasSubstr("Prompt tokens, cached, host          160"));
  const nlohmann::ordered_json own = ToJson(result)["millrace_loadtest"];
  EXPECT_EQ(own["sessions"]["begun"], 3);
  EXPECT_EQ(own["turns"][1]["turn"], "2");
  EXPECT_EQ(own["turns"][1]["cached_tokens_by_tier"]["host"], 160);
  EXPECT_EQ(own["turns"][1]["failed"], 1);
  EXPECT_EQ(own["turns"][1]["computed_tokens"], 86);
  EXPECT_EQ(own["all_turns"]["new_tokens"], 265);
  EXPECT_EQ(own["prompt_tokens_by_source"]["local_compute"], 256);
}

constexpr std::string_view kPage = R"(# HELP vllm:prompt_tokens_by_source_total x
vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 100
vllm:prompt_tokens_by_source_total{engine="1",source="local_compute"} 11.0 1764000000
vllm:prompt_tokens_by_source_total{source="local_cache_hit",engine="0"} 5
vllm:prompt_tokens_cached_by_source_total{other_source="no",source="host"} 3
sglang:cached_tokens_total{cache_source="storage"} 4e1
sglang:cached_tokens_total 9
vllm:prompt_tokens_by_source_total{source="broken"} x
vllm:prompt_tokens_by_source_total{source=)";

TEST(PromptSourcesTest, ReadsTheMetricsOfEachServer) {
  const PromptSources sources = ParsePromptSources(kPage);
  EXPECT_THAT(
      sources,
      ElementsAre(testing::Pair("cached, host", 3), testing::Pair("cached, storage", 40),
                  testing::Pair("local_cache_hit", 5), testing::Pair("local_compute", 111)));
  EXPECT_TRUE(ParsePromptSources("<html>").empty());
  EXPECT_THAT(
      CountedSince({{"local_compute", 100}, {"cached, host", 3}, {"local_cache_hit", 9}}, sources),
      ElementsAre(testing::Pair("cached, storage", 40),
                  testing::Pair("local_cache_hit", 5),  // it began anew
                  testing::Pair("local_compute", 11)));
}

TEST(PromptSourcesTest, APageCannotBringMoreThanAFewSources) {
  std::string page;
  for (int i = 0; i < 1000; ++i) {
    page += "sglang:cached_tokens_total{cache_source=\"" + std::to_string(i) + "\"} 1\n";
  }
  EXPECT_EQ(ParsePromptSources(page).size(), 32U);
}

}  // namespace
}  // namespace millrace
