#include "server/bench/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/strings.h"

namespace millrace {
namespace {

using testing::HasSubstr;

const GpuReading kBefore = {"NVIDIA H200", "580.1", 345, 3201, 75, 30};
const GpuReading kAfter = {"NVIDIA H200", "580.1", 1980, 3201, 400.4, 45};

PointFigures Decode() {
  return {.point = {64, 128, {16, 144}},
          .lengths = {{16, {90, 100, 110}, 100}, {144, {650, 660, 670}, 660}},
          .step_ms = 4.375,
          .output_tokens_per_s = 14628.6,
          .before = kBefore,
          .after = kAfter};
}

PointFigures DecodeOfExperts() {
  PointFigures figures = Decode();
  figures.experts = {.touched = {90, 111},
                     .experts = 128,
                     .expert_bytes = 1.25e9,
                     .step_bytes = 8.75e9,
                     .read_rate = 4e12,
                     .share = 0.5};
  return figures;
}

StepTrace Trace() {
  return {.rows = {{"void millrace::kernels::Gemm<4>(Args)", 60, 2, 0.75, 4, 2.4e8},
                   {"norm", 20, 2, 0.25, 16, 0}},
          .steps = 8,
          .only_whole_steps = true,
          .launches = 4,
          .busy_us = 80,
          .span_us = 100,
          .largest_gap_us = 8,
          .after_gap = "void norm(Args)"};
}

BenchContext Context() {
  return {
      .version = "1.2.3",
      .settings = "device=cuda",
      .model_name = "llama",
      .model = {.architecture = "llama",
                .weight_bytes = 16'000'000'000,
                .limits = {.num_blocks = {1000}, .state = StateLayout::OnePool(16)},
                .kv_type = "bfloat16",
                .load_phases = {{"weights", 1.5}}},
      .machine = {"A CPU", 16},
      .gpu = kBefore,
      .start = {.total_s = 2, .before_load_s = 0.0625, .load_s = 1.75, .first_request_s = 0.125}};
}

TEST(ReportTest, ALineHasTheHeadsColumns) {
  for (const bool with_gpu : {false, true}) {
    const std::string text = PointsHead(with_gpu) + PointLine(Decode(), with_gpu);
    for (const std::string_view line : SplitList(text, '\n')) {
      EXPECT_EQ(std::count(line.begin(), line.end(), '|'), with_gpu ? 12 : 9) << line;
    }
  }
}

TEST(ReportTest, ALine) {
  EXPECT_EQ(
      PointLine(Decode(), true),
      "|    64 |    128 |  16, 144 |       100.00, 660.00 |   3.0% |   4.375 |   14629 |       "
      "     - |  345 > 1980 |  75 > 400 | 30 > 45 |\n");
}

TEST(ReportTest, APeerHasColumnsOfItsOwn) {
  const auto peer = PeerFigures::Parse(
      R"({"points": [{"batch": 64, "input": 128, "output_tokens_per_s": 7314.3}]})");
  ASSERT_TRUE(peer.ok());
  EXPECT_THAT(PointLine(Decode(), false, &*peer), HasSubstr("|       7314 |  2.00 |\n"));
  PointFigures another = Decode();
  another.point.batch = 32;
  EXPECT_THAT(PointLine(another, false, &*peer), HasSubstr("|          - |     - |\n"));
  const std::string text = PointsHead(true, &*peer) + PointLine(Decode(), true, &*peer);
  for (const std::string_view line : SplitList(text, '\n')) {
    EXPECT_EQ(std::count(line.begin(), line.end(), '|'), 14) << line;
  }
}

TEST(ReportTest, WhyAPointIsVoidStandsBelowIt) {
  PointFigures figures = Decode();
  figures.void_because = {"this", "that"};
  EXPECT_THAT(PointLine(figures, false), HasSubstr("|\nVOID: this\nVOID: that\n"));
}

TEST(ReportTest, TheContext) {
  EXPECT_EQ(ContextText(Context()),
            "millraced 1.2.3, llama (llama): 16.00 GB of weights, 1000 KV blocks of 16 tokens "
            "(bfloat16)\nA CPU, 16 cores; NVIDIA H200, driver 580.1\ndevice=cuda\n"
            "start to first token: 2.000 s (program 0.062, load 1.750, first request 0.125)\n"
            "  weights                          1.500 s\n");
}

TEST(ReportTest, ATrace) {
  const std::string table = TraceTable({1, 128, {16, 144}}, Trace());
  EXPECT_THAT(table, HasSubstr("| Gemm<4> "));
  EXPECT_THAT(table,
              HasSubstr("|       60.0 |      2.0 |  75.0% |         4.0 |    240.00 |  4000 |\n"));
  EXPECT_THAT(table,
              HasSubstr("|       20.0 |      2.0 |  25.0% |        16.0 |         - |     - |\n"));
  EXPECT_THAT(table, HasSubstr("240.0 MB a step must move: 2400 GB/s of the span\n"));
  EXPECT_THAT(table, HasSubstr("busy 80.0 us / span 100.0 us; idle 20.0 us a step, the largest gap "
                               "8.0 us before norm\n"));
  EXPECT_THAT(table, HasSubstr("means of 8 steps of the whole batch"));
}

TEST(ReportTest, TheRanksOfATrace) {
  EXPECT_EQ(RankTable({Trace()}), "");
  StepTrace other = Trace();
  other.rows = {{"norm", 32, 2, 1, 0, 0}};
  other.busy_us = 32;
  const std::string table = RankTable({Trace(), other});
  const std::vector<std::string_view> lines = SplitList(table, '\n');
  ASSERT_GE(lines.size(), 7u);  // what it says, head, rule, kernels, busy, span
  EXPECT_TRUE(lines[3].starts_with("| Gemm<4> ")) << lines[3];
  EXPECT_TRUE(lines[3].ends_with(" |     60.0 |      0.0 |")) << lines[3];
  EXPECT_TRUE(lines[4].starts_with("| norm ")) << lines[4];
  EXPECT_TRUE(lines[4].ends_with(" |     20.0 |     32.0 |")) << lines[4];
  EXPECT_TRUE(lines[5].ends_with(" |     80.0 |     32.0 |")) << lines[5];
  EXPECT_TRUE(lines[6].ends_with(" |    100.0 |    100.0 |")) << lines[6];
}

TEST(ReportTest, TheExpertsOfEachPoint) {
  EXPECT_EQ(ExpertTable({{Decode(), {}}}), "");
  PointFigures prefill = DecodeOfExperts();
  prefill.step_ms.reset();
  prefill.experts->step_bytes = prefill.experts->read_rate = prefill.experts->share = std::nullopt;
  const std::string table = ExpertTable({{DecodeOfExperts(), {}}, {std::move(prefill), {}}});
  EXPECT_THAT(table, HasSubstr("|    64 |    128 |  16, 144 |   100.5 | 128.0 |    1.250 |   8.750 "
                               "|  2000 |      4000 |  50.0% |\n"));
  EXPECT_THAT(table, HasSubstr("|    64 |    128 |  16, 144 |   100.5 | 128.0 |    1.250 |       - "
                               "|     - |         - |      - |\n"));
  const std::vector<std::string_view> lines = SplitList(table, '\n');
  ASSERT_EQ(lines.size(), 5u);  // what it says, head, rule, points
  for (size_t i = 1; i < lines.size(); ++i) {
    EXPECT_EQ(std::count(lines[i].begin(), lines[i].end(), '|'), 11) << lines[i];
  }
}

TEST(ReportTest, Json) {
  PointFigures prefill = {.point = {1, 4096, {1}},
                          .lengths = {{1, {60}, 60}},
                          .prompt_tokens_per_s = 68266.7,
                          .void_because = {"because"}};
  const nlohmann::ordered_json json =
      ToJson(Context(), {{DecodeOfExperts(), {Trace(), Trace()}}, {std::move(prefill), {}}});
  EXPECT_EQ(json["version"], "1.2.3");
  EXPECT_EQ(json["model"]["weight_bytes"], 16'000'000'000);
  EXPECT_EQ(json["gpu"]["name"], "NVIDIA H200");
  EXPECT_EQ(json["start"]["load_phases"][0]["name"], "weights");
  ASSERT_EQ(json["points"].size(), 2u);
  const auto& decode = json["points"][0];
  EXPECT_EQ(decode["batch"], 64);
  EXPECT_EQ(decode["step_ms"], 4.375);
  EXPECT_EQ(decode["lengths"][1]["wall_ms"].size(), 3u);
  EXPECT_EQ(decode["experts"]["touched"], 100.5);
  EXPECT_EQ(decode["experts"]["touched_by_mixture"][1], 111);
  EXPECT_EQ(decode["experts"]["share_of_read_rate"], 0.5);
  EXPECT_EQ(decode["gpu_after"]["sm_mhz"], 1980);
  EXPECT_EQ(decode["trace"]["kernels"][0]["launches_per_step"], 2);
  EXPECT_EQ(decode["trace"]["kernels"][0]["name"], "void millrace::kernels::Gemm<4>(Args)");
  ASSERT_EQ(decode["traces_of_other_ranks"].size(), 1u);
  EXPECT_EQ(decode["traces_of_other_ranks"][0]["busy_us"], 80);
  const auto& second = json["points"][1];
  EXPECT_TRUE(second["step_ms"].is_null());
  EXPECT_TRUE(second["trace"].is_null());
  EXPECT_TRUE(second["experts"].is_null());
  EXPECT_TRUE(second["gpu_before"].is_null());
  EXPECT_EQ(second["void_because"][0], "because");
}

}  // namespace
}  // namespace millrace
