#include "config/settings_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace millrace {
namespace {

TEST(SettingsTableTest, NamesAreUniqueAndGroupsHoldTogether) {
  std::set<std::string_view> names;
  std::set<std::string_view> groups;
  std::string_view group;
  for (const Setting& setting : SettingsTable()) {
    EXPECT_TRUE(names.insert(setting.name).second) << setting.name;
    if (setting.group != group) {
      EXPECT_TRUE(groups.insert(setting.group).second) << setting.group;
    }
    group = setting.group;
    EXPECT_EQ(setting.placeholder.empty(), setting.kind == SettingKind::kSwitch) << setting.name;
    EXPECT_FALSE(setting.allowed.empty()) << setting.name;
    EXPECT_FALSE(setting.help.empty()) << setting.name;
    // A switch `x` answers to --no-x, which no other setting may be called.
    EXPECT_FALSE(setting.name.starts_with("no-")) << setting.name;
  }
}

// A default that its own setting refuses could not be written down again.
TEST(SettingsTableTest, DefaultsAreAllowed) {
  for (const Setting& setting : SettingsTable()) {
    Settings settings;
    if (!setting.default_text.empty()) {
      EXPECT_TRUE(setting.set(setting.default_text, settings)) << setting.name;
    }
  }
}

TEST(SettingsTableTest, NothingIsSetByWhatIsRefused) {
  for (const Setting& setting : SettingsTable()) {
    Settings settings;
    EXPECT_FALSE(setting.set("", settings)) << setting.name;
  }
}

TEST(SettingsTableTest, FindsByEitherSpelling) {
  ASSERT_NE(FindSetting("http-port"), nullptr);
  EXPECT_EQ(FindSetting("http_port"), FindSetting("http-port"));
  EXPECT_EQ(FindSetting("HTTP-PORT"), nullptr);
  EXPECT_EQ(FindSetting(""), nullptr);
  EXPECT_EQ(EnvironmentName(*FindSetting("http-port")), "MILLRACE_HTTP_PORT");
}

TEST(SettingsTableTest, Nearest) {
  EXPECT_EQ(NearestSetting("max_num_seq"), FindSetting("max-num-seqs"));
  EXPECT_EQ(NearestSetting("hots"), nullptr);
  EXPECT_EQ(NearestSetting("modell"), FindSetting("model"));
  EXPECT_EQ(NearestSetting("pipeline-parallel-size"), nullptr);
  EXPECT_EQ(NearestSetting(std::string(1 << 20, 'x')), nullptr);
}

}  // namespace
}  // namespace millrace
