#include "config/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/strings.h"
#include "config/settings_table.h"

namespace millrace {
namespace {

using testing::HasSubstr;

// The shells themselves are asked in tests/test_install.py.
TEST(CompletionTest, EveryShellKnowsEverySetting) {
  for (const std::string_view shell : {"bash", "zsh", "fish"}) {
    const absl::StatusOr<std::string> script = CompletionScript(shell);
    ASSERT_TRUE(script.ok()) << script.status();
    const std::string_view before = shell == "fish" ? "-l " : "--";
    for (const Setting& setting : SettingsTable()) {
      EXPECT_THAT(*script, HasSubstr(StrCat(before, setting.name))) << shell;
      if (setting.kind != SettingKind::kSwitch) continue;
      EXPECT_THAT(*script, HasSubstr(StrCat(before, "no-", setting.name))) << shell;
    }
  }
}

TEST(CompletionTest, OffersTheValuesOfAChoice) {
  EXPECT_THAT(*CompletionScript("bash"), HasSubstr("--device) words=\"cpu cuda torch fake\""));
  EXPECT_THAT(*CompletionScript("zsh"), HasSubstr(":DEVICE:(cpu cuda torch fake)'"));
  EXPECT_THAT(*CompletionScript("fish"), HasSubstr(" -x -a 'cpu cuda torch fake'\n"));
}

TEST(CompletionTest, RefusesOtherShells) {
  EXPECT_EQ(CompletionScript("tcsh").status().message(),
            "flag --print-completion: got \"tcsh\", expected bash, zsh or fish");
  EXPECT_FALSE(CompletionScript("").ok());
}

}  // namespace
}  // namespace millrace
