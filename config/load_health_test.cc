// The settings of `millraced health`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/load.h"

namespace millrace {
namespace {

using testing::HasSubstr;
using Arguments = std::vector<std::string>;

absl::StatusOr<Startup> Health(Arguments arguments, const Arguments& environment = {}) {
  arguments.insert(arguments.begin(), "health");
  return LoadSettings(arguments, environment);
}

std::string Error(const Arguments& arguments, const Arguments& environment = {}) {
  const absl::StatusOr<Startup> startup = Health(arguments, environment);
  return startup.ok() ? "(no error)" : std::string(startup.status().message());
}

TEST(LoadHealthTest, Defaults) {
  const absl::StatusOr<Startup> startup = Health({});
  ASSERT_TRUE(startup.ok()) << startup.status();
  EXPECT_EQ(startup->command, Command::kHealth);
  EXPECT_EQ(startup->settings.probe, Probe::kReady);
  EXPECT_EQ(startup->settings.probe_timeout, std::chrono::seconds(3));
}

TEST(LoadHealthTest, EveryFlag) {
  const absl::StatusOr<Startup> startup =
      Health({"--probe=live", "--probe-timeout=500ms", "--host=::1", "--http-port=9"});
  ASSERT_TRUE(startup.ok()) << startup.status();
  EXPECT_EQ(startup->settings.probe, Probe::kLive);
  EXPECT_EQ(startup->settings.probe_timeout, std::chrono::milliseconds(500));
  EXPECT_EQ(startup->settings.host, "::1");
  EXPECT_EQ(startup->settings.http_port, 9);
}

// A container's health check runs in the server's environment.
TEST(LoadHealthTest, TheServersSettingsMayStandInTheEnvironment) {
  const absl::StatusOr<Startup> startup =
      Health({}, {"MILLRACE_HOST=0.0.0.0", "MILLRACE_HTTP_PORT=81", "MILLRACE_DEVICE=fake",
                  "MILLRACE_THREADS=2", "MILLRACE_MAX_NUM_SEQS=4096"});
  ASSERT_TRUE(startup.ok()) << startup.status();
  EXPECT_EQ(startup->settings.http_port, 81);
}

TEST(LoadHealthTest, Refusals) {
  EXPECT_EQ(Error({"--model=x"}),
            "flag --model: got \"x\", which means nothing to health, which asks a server");
  EXPECT_EQ(Error({"--http-port=0"}),
            "flag --http-port: got \"0\", but health must know the port: expected 1 to 65535");
  EXPECT_EQ(Error({"--probe=lively"}), "flag --probe: got \"lively\", expected one of ready, live");
  EXPECT_THAT(Error({"--probe-timeout=1ms"}), HasSubstr("from 100ms to 1h"));
}

TEST(LoadHealthTest, OtherCommandsTakeNoneOfThem) {
  EXPECT_EQ(LoadSettings({"--probe=live"}, {}).status().message(),
            "flag --probe: got \"live\", allowed only with `millraced health`");
  EXPECT_THAT(LoadSettings({"bench", "--probe=live"}, {}).status().message(),
              HasSubstr("means nothing to bench"));
}

TEST(LoadHealthTest, Help) {
  const std::string help = Health({"--help"})->print;
  EXPECT_THAT(help, HasSubstr("Usage: millraced health"));
  EXPECT_THAT(help, HasSubstr("\n  --probe PROBE\n"));
  EXPECT_THAT(help, HasSubstr("\n  --http-port PORT\n"));
  EXPECT_THAT(help, testing::Not(HasSubstr("--model")));
}

}  // namespace
}  // namespace millrace
