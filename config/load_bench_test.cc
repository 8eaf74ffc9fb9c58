// The settings of `millraced bench`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/load.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Arguments = std::vector<std::string>;

absl::StatusOr<Startup> Bench(Arguments arguments, const Arguments& environment = {}) {
  arguments.insert(arguments.begin(), "bench");
  return LoadSettings(arguments, environment);
}

std::string Error(const Arguments& arguments, const Arguments& environment = {}) {
  const absl::StatusOr<Startup> startup = Bench(arguments, environment);
  return startup.ok() ? "(no error)" : std::string(startup.status().message());
}

TEST(LoadBenchTest, Defaults) {
  const absl::StatusOr<Startup> startup = Bench({"--device=fake"});
  ASSERT_TRUE(startup.ok()) << startup.status();
  EXPECT_EQ(startup->command, Command::kBench);
  const Settings& s = startup->settings;
  EXPECT_THAT(s.bench_batch_sizes, ElementsAre(1));
  EXPECT_EQ(s.bench_input_len, 128);
  EXPECT_THAT(s.bench_output_lens, ElementsAre(16, 144));
  EXPECT_TRUE(s.bench_points.empty());
  EXPECT_EQ(s.bench_reps, 3);
  EXPECT_FALSE(s.temperature.has_value());
  EXPECT_FALSE(s.bench_trace);
  EXPECT_FALSE(s.bench_lone_rank);
  EXPECT_EQ(s.bench_routing, Routing::kUniform);
}

TEST(LoadBenchTest, EveryFlag) {
  const absl::StatusOr<Startup> startup =
      Bench({"--device=cuda", "--batch-sizes=1,64", "--batch-sizes=256", "--input-len=7",
             "--output-lens", "2,4", "--reps=9", "--temperature=0.5", "--json=f", "--trace",
             "--load-format=dummy", "--routing=real", "--tensor-parallel-size=2", "--lone-rank"});
  ASSERT_TRUE(startup.ok()) << startup.status();
  const Settings& s = startup->settings;
  EXPECT_THAT(s.bench_batch_sizes, ElementsAre(1, 64, 256));
  EXPECT_EQ(s.bench_input_len, 7);
  EXPECT_THAT(s.bench_output_lens, ElementsAre(2, 4));
  EXPECT_EQ(s.bench_reps, 9);
  EXPECT_EQ(s.temperature, 0.5);
  EXPECT_EQ(s.bench_json, "f");
  EXPECT_TRUE(s.bench_trace);
  EXPECT_TRUE(s.bench_lone_rank);
  EXPECT_EQ(s.bench_routing, Routing::kReal);
}

TEST(LoadBenchTest, Points) {
  const absl::StatusOr<Startup> startup = Bench({"--points=64:2048:16:80,1:4096:1"});
  ASSERT_TRUE(startup.ok()) << startup.status();
  const std::vector<BenchPoint>& points = startup->settings.bench_points;
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[0].batch, 64);
  EXPECT_EQ(points[0].input, 2048);
  EXPECT_THAT(points[0].outputs, ElementsAre(16, 80));
  EXPECT_THAT(points[1].outputs, ElementsAre(1));
}

TEST(LoadBenchTest, Refusals) {
  for (const char* wrong : {"1:2", "1:2:3:4:5", "0:1:1", "1::1:1", "1:1:x"}) {
    EXPECT_THAT(Error({"--points", wrong}), HasSubstr("expected comma-separated points")) << wrong;
  }
  EXPECT_EQ(Error({"--output-lens=16,16"}),
            "flag --output-lens: got \"16,16\", expected one output length, or two, the shorter "
            "first");
  EXPECT_EQ(
      Error({"--points=1:1:5:4"}),
      "flag --points: got \"1:1:5:4\", expected one output length, or two, the shorter first");
  EXPECT_EQ(Error({"--points=1:1:1", "--input-len=5"}),
            "flag --input-len: got \"5\", but --points says what to measure");
  EXPECT_EQ(Error({"--trace"}), "flag --trace: got \"true\", allowed only with --device cuda");
  EXPECT_EQ(Error({"--device=cuda", "--routing=uniform"}),
            "flag --routing: got \"uniform\", allowed only with --load-format dummy");
  EXPECT_EQ(Error({"--device=cuda", "--load-format=dummy", "--routing=zipf"}),
            "flag --routing: got \"zipf\", expected one of uniform, real");
  EXPECT_THAT(Error({"--load-format=dummy", "--routing=real"}),
              HasSubstr("allowed only with --device cuda"));
  EXPECT_THAT(Error({"--batch-sizes=0"}), HasSubstr("expected whole numbers from 1 to 4096"));
  EXPECT_THAT(Error({"--temperature=nan"}), HasSubstr("expected a number from 0 to 2"));
  EXPECT_EQ(Error({"--http-port=1"}),
            "flag --http-port: got \"1\", which means nothing to bench, which serves no clients");
  EXPECT_THAT(Error({"--max-waiting=5"}), HasSubstr("means nothing to bench"));
}

// They are the server's, which may read the same file and environment.
TEST(LoadBenchTest, TheServersSettingsMayStandInTheEnvironment) {
  EXPECT_EQ(Error({}, {"MILLRACE_HOST=0.0.0.0", "MILLRACE_HTTP_PORT=1"}), "(no error)");
}

TEST(LoadBenchTest, TheServerTakesNoneOfThem) {
  const absl::StatusOr<Startup> startup = LoadSettings({"--reps=5"}, {});
  ASSERT_FALSE(startup.ok());
  EXPECT_EQ(startup.status().message(),
            "flag --reps: got \"5\", allowed only with `millraced bench`");
  EXPECT_FALSE(LoadSettings({"--threads=1", "bench"}, {}).ok());
}

TEST(LoadBenchTest, Help) {
  EXPECT_THAT(Bench({"--help"})->print, HasSubstr("Usage: millraced bench"));
}

}  // namespace
}  // namespace millrace
