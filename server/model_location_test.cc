#include "server/model_location.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/strings.h"
#include "config/settings_table.h"
#include "engine/request/request_fields.h"

namespace millrace {
namespace {

using testing::Pair;
using testing::UnorderedElementsAre;

TEST(SamplingSettingsTest, GoBeforeTheFilesOfTheModel) {
  const std::filesystem::path folder = testing::TempDir() + StrCat("model_location_", getpid());
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "generation_config.json")
      << R"({"temperature": 0.5, "top_k": 7, "max_new_tokens": 9})";
  Settings settings;
  settings.model = folder.string();
  settings.temperature = 0;
  settings.top_p = 0.75;
  settings.presence_penalty = -1;
  EXPECT_THAT(
      NamedDefaults(*LoadSamplingDefaults(settings, folder.string())),
      UnorderedElementsAre(Pair("temperature", "0"), Pair("top_k", "7"), Pair("top_p", "0.75"),
                           Pair("presence_penalty", "-1"), Pair("max_tokens", "9")));
  settings.max_tokens = 3;
  settings.generation_config = "vllm";
  EXPECT_THAT(NamedDefaults(*LoadSamplingDefaults(settings, folder.string())),
              UnorderedElementsAre(Pair("temperature", "0"), Pair("top_p", "0.75"),
                                   Pair("presence_penalty", "-1"), Pair("max_tokens", "3")));
  std::filesystem::remove_all(folder);
}

TEST(SamplingSettingsTest, TheDefaultModelIsSampledAsItsAuthorsDo) {
  Settings settings;
  EXPECT_THAT(NamedDefaults(*LoadSamplingDefaults(settings, "x.gguf")),
              UnorderedElementsAre(Pair("temperature", "0.2"), Pair("top_p", "0.9")));
  settings.generation_config = "vllm";
  EXPECT_TRUE(NamedDefaults(*LoadSamplingDefaults(settings, "x.gguf")).empty());
}

// A default that no request may have would make every request fail.
TEST(SamplingSettingsTest, RangesAreThoseOfRequests) {
  ForEachSamplingField([](const auto& field) {
    std::string name = field.name;
    std::replace(name.begin(), name.end(), '_', '-');
    const Setting* const setting = FindSetting(name);
    ASSERT_NE(setting, nullptr) << name;
    for (const double value : {-3.0, -2.0, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 100.0, 101.0}) {
      using Number = std::decay_t<decltype(field.least)>;
      if (static_cast<double>(static_cast<Number>(value)) != value) continue;
      Settings settings;
      EXPECT_EQ(setting->set(StrCat(value), settings), field.Allows(static_cast<Number>(value)))
          << name << " " << value;
    }
  });
}

}  // namespace
}  // namespace millrace
