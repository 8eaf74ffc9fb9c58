#include "server/reloader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "base/event.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr auto kPatience = std::chrono::seconds(20);

TEST(ReloaderTest, AReloadThatHangsHoldsUpNobody) {
  Event begun, go_on;
  std::atomic<int> hosts_set = 0;
  Reloader reloader(
      [&]() -> absl::StatusOr<Startup> {
        begun.Raise();
        go_on.Wait(Clock::Real().Now() + kPatience);
        return Startup();
      },
      Startup());
  reloader.Connect(
      [&](const Settings&) {
        ++hosts_set;
        return absl::OkStatus();
      },
      [] {});
  reloader.Reload();
  ASSERT_TRUE(begun.Wait(Clock::Real().Now() + kPatience));
  EXPECT_FALSE(reloader.Disconnect(std::chrono::milliseconds(1)));
  EXPECT_EQ(hosts_set, 0);
  go_on.Raise();
  EXPECT_TRUE(reloader.Disconnect(kPatience));
}

TEST(ReloaderTest, WhatWasLoadedBeforeTheServerWaitsForIt) {
  Event loaded;
  Startup again;
  again.settings.log = "info";
  again.settings.admin_allowed_hosts = {"ops.example"};
  Reloader reloader(
      [&]() -> absl::StatusOr<Startup> {
        loaded.Raise();
        return again;
      },
      Startup());
  reloader.Reload();
  ASSERT_TRUE(loaded.Wait(Clock::Real().Now() + kPatience));
  Event set;
  reloader.Connect(
      [&](const Settings& settings) {
        EXPECT_EQ(settings.admin_allowed_hosts, std::vector<std::string>{"ops.example"});
        EXPECT_TRUE(settings.allowed_hosts.empty());
        set.Raise();
        return absl::OkStatus();
      },
      [] {});
  EXPECT_TRUE(set.Wait(Clock::Real().Now() + kPatience));
  EXPECT_TRUE(reloader.Disconnect(kPatience));
}

TEST(ReloaderTest, AFileThatIsNoneHoldsUpNobodyAndIsToldOf) {
  const std::string fifo = testing::TempDir() + "reloader_fifo";
  remove(fifo.c_str());
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  absl::StatusOr<Startup> loaded =
      LoadSettings({"--device=fake", "--config", fifo}, {}, Pipes::kRefuse);
  EXPECT_THAT(std::string(loaded.status().message()),
              AllOf(StartsWith("flag --config: " + fifo), HasSubstr("it is a FIFO; allowed: a")));
  Reloader reloader([&] { return loaded; }, Startup());
  Event failed;
  reloader.reading().OnChange([&](bool failing) {
    if (failing) failed.Raise();
  });
  reloader.Reload();
  EXPECT_TRUE(failed.Wait(Clock::Real().Now() + kPatience));
  EXPECT_TRUE(reloader.Disconnect(kPatience));
  EXPECT_TRUE(reloader.reading().failing());
}

}  // namespace
}  // namespace millrace
