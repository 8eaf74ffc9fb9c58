#include "config/man_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/strings.h"
#include "config/settings_table.h"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(ManPageTest, HoldsEverySetting) {
  const std::string page = ManPage();
  EXPECT_TRUE(page.starts_with(".TH MILLRACED 8 "));
  for (const Setting& setting : SettingsTable()) {
    std::string name;
    for (const char c : setting.name) name += c == '-' ? std::string("\\-") : std::string(1, c);
    EXPECT_THAT(page, HasSubstr(StrCat(name, "\\fR"))) << setting.name;
  }
  EXPECT_THAT(page,
              HasSubstr(".TP\n\\fB\\-\\-http\\-port\\fR \\fIPORT\\fR\nHTTP; 0: any free one.\n"
                        ".br\nAllowed: a whole number from 0 to 65535. Default: 8000.\n"));
  EXPECT_THAT(page, HasSubstr("\\fB\\-\\-[no\\-]offline\\fR\n"));
}

// roff would take such a line for a request, and leave it out.
TEST(ManPageTest, NoTextBeginsALineWithADot) {
  const std::string page = ManPage();
  for (const std::string_view line : SplitList(page, '\n')) {
    if (!line.starts_with('.')) continue;
    const std::string_view request = line.substr(1, line.find(' ') - 1);
    EXPECT_THAT(
        (std::vector<std::string_view>{"TH", "SH", "SS", "TP", "PP", "B", "BR", "RI", "br"}),
        testing::Contains(request));
  }
  EXPECT_THAT(page, Not(HasSubstr("\n'")));
}

}  // namespace
}  // namespace millrace
