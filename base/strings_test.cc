#include "base/strings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(StringsTest, StrCatTakesBothViewsAndNumbers) {
  const std::string_view standard = "a";
  const absl::string_view abseil = "b";
  EXPECT_EQ(StrCat(standard, abseil, std::string("c"), "d", 1, int64_t{-2}, 2.5, absl::Hex(255)),
            "abcd1-22.5ff");
  EXPECT_EQ(StrCat(1, standard, 2, standard, 3, standard, 4), "1a2a3a4");
}

TEST(StringsTest, PrintableEscapesAndCuts) {
  EXPECT_EQ(Printable("a\n\x01"), "a\\n\\x01");
  EXPECT_EQ(Printable("abcdef", 3), "abc...");
  EXPECT_EQ(Printable("abc", 3), "abc");
}

TEST(StringsTest, ParseNumberTakesTheWholeTextOrNothing) {
  EXPECT_EQ(ParseNumber<int>("42"), 42);
  EXPECT_EQ(ParseNumber<int>("-7"), -7);
  for (const char* wrong : {"", " 1", "1 ", "+1", "1.0", "0x1", "2147483648", "ten"}) {
    EXPECT_EQ(ParseNumber<int>(wrong), std::nullopt) << wrong;
  }
  EXPECT_EQ(ParseNumber<uint8_t>("256"), std::nullopt);
  EXPECT_EQ(ParseNumber<uint8_t>("-1"), std::nullopt);
}

TEST(StringsTest, SplitListTrimsAndDropsEmptyParts) {
  EXPECT_THAT(SplitList(" a, b c ,,\td\n"), ElementsAre("a", "b c", "d"));
  EXPECT_THAT(SplitList("x@y", '@'), ElementsAre("x", "y"));
  EXPECT_THAT(SplitList(" , "), IsEmpty());
  EXPECT_THAT(SplitList(""), IsEmpty());
}

TEST(StringsTest, JoinList) {
  EXPECT_EQ(JoinList(std::vector<std::string_view>{"a", "b"}), "a, b");
  EXPECT_EQ(JoinList(std::vector<std::string>{}), "");
}

}  // namespace
}  // namespace millrace
