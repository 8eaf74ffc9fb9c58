#include "config/help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "base/strings.h"
#include "config/commands.h"
#include "config/settings_table.h"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(HelpTest, HoldsEverySettingWithItsRangeAndDefault) {
  const std::string help = HelpText(Command::kServe);
  constexpr struct {
    const char* before;
    const char* behind;
  } kForms[] = {{"--", " "}, {"--", "\n"}, {"--[no-]", "\n"}};
  for (const Setting& setting : SettingsTable()) {
    const bool shown = std::any_of(std::begin(kForms), std::end(kForms), [&](const auto& form) {
      return help.find(StrCat(form.before, setting.name, form.behind)) != help.npos;
    });
    EXPECT_EQ(shown, IsFor(setting, Command::kServe)) << setting.name;
  }
  EXPECT_THAT(help, HasSubstr("\n  --http-port PORT\n      HTTP; 0: any free one\n"
                              "      [a whole number from 0 to 65535; default 8000]\n"));
  EXPECT_THAT(help, HasSubstr("--[no-]prefix-caching\n"));
  for (const std::string_view line : SplitList(help, '\n')) EXPECT_LE(line.size(), 96u) << line;
}

TEST(HelpTest, TheFirstHelpIsShortAndBeginsWithCommands) {
  for (const Command command : {Command::kServe, Command::kDoctor, Command::kChat}) {
    const std::string help = ShortHelpText(command);
    EXPECT_LE(std::count(help.begin(), help.end(), '\n'), 30);
    EXPECT_THAT(help, HasSubstr("--help-all"));
    for (const std::string_view line : SplitList(help, '\n')) EXPECT_LE(line.size(), 96u) << line;
  }
  const std::string help = ShortHelpText(Command::kServe);
  for (const CommandInfo& info : Commands()) {
    const size_t at = help.find(StrCat("\n  ", info.word, " "));
    ASSERT_NE(at, help.npos) << info.word;
    EXPECT_LT(at, help.find("--device")) << info.word;
  }
  EXPECT_EQ(ShortHelpText(Command::kGet), HelpText(Command::kGet));
}

TEST(HelpTest, BenchShowsWhatItTakes) {
  const std::string help = HelpText(Command::kBench);
  EXPECT_THAT(help, HasSubstr("\n  --output-lens TOKENS[,TOKENS]\n"));
  EXPECT_THAT(help, HasSubstr("comma-separated; default 16,144]\n"));
  EXPECT_THAT(help, HasSubstr("\n  --device DEVICE\n"));
  EXPECT_THAT(help, Not(HasSubstr("--http-port PORT")));
  EXPECT_THAT(help, Not(HasSubstr("--max-waiting")));
  for (const std::string_view line : SplitList(help, '\n')) EXPECT_LE(line.size(), 96u) << line;
}

TEST(HelpTest, MarkdownHasFourCellsInEachRow) {
  const std::string table = SettingsTableMarkdown();
  EXPECT_THAT(table, HasSubstr("| `--http-port PORT` | `8000` | a whole number from 0 to 65535 | "
                               "HTTP; 0: any free one |\n"));
  for (const std::string_view line : SplitList(table, '\n')) {
    EXPECT_EQ(std::count(line.begin(), line.end(), '|'), 5) << line;
  }
}

// ctest runs in the root of the source tree.
TEST(HelpTest, TheDocumentedTableIsThisOne) {
  std::ifstream file("docs/settings.md");
  const std::string document(std::istreambuf_iterator<char>(file), {});
  const std::string expected =
      StrCat("<!-- settings -->\n", SettingsTableMarkdown(), "<!-- /settings -->\n");
  EXPECT_NE(document.find(expected), document.npos)
      << "The table of docs/settings.md is not that of config/settings_table.cc. Put this between "
         "its "
         "markers (millraced --print-settings-table prints it):\n"
      << expected;
}

}  // namespace
}  // namespace millrace
