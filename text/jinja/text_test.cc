#include "text/jinja/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace millrace::jinja {
namespace {

using ::testing::ElementsAre;

TEST(TextTest, StripsUnicodeWhiteSpace) {
  EXPECT_EQ(StripSpace("\u3000 a b\u00a0\u2028\n", Side::kBoth), "a b");
  EXPECT_EQ(StripSpace(" a ", Side::kLeft), "a ");
  EXPECT_EQ(StripSpace(" a ", Side::kRight), " a");
  EXPECT_EQ(StripSpace(" \n", Side::kBoth), "");
  EXPECT_EQ(StripSpace("\u200b", Side::kBoth), "\u200b");  // Zero width, but no white space.
}

TEST(TextTest, StripsGivenCharacters) {
  EXPECT_EQ(StripAny("éaé日", "日é", Side::kBoth), "a");
  EXPECT_EQ(StripAny("aba", "", Side::kBoth), "aba");
}

// Neither loses nor reads beyond bytes that are no UTF-8.
TEST(TextTest, KeepsInvalidBytes) {
  const std::string broken = "\xe6\x97 a\xff \x80";
  EXPECT_EQ(StripSpace(broken, Side::kBoth), broken);
  EXPECT_EQ(CountCodePoints(broken), 7);
  EXPECT_EQ(CodePointRange(broken, 1, 4), "\x97 a");
  EXPECT_EQ(Upper(broken), "\xe6\x97 A\xff \x80");
  EXPECT_EQ(SplitSpace(broken, -1).size(), 3);
}

TEST(TextTest, Splits) {
  EXPECT_THAT(Split("a,,b", ",", -1), ElementsAre("a", "", "b"));
  EXPECT_THAT(Split("a,b,c", ",", 1), ElementsAre("a", "b,c"));
  EXPECT_THAT(SplitRight("a,b,c", ",", 1), ElementsAre("a,b", "c"));
  EXPECT_THAT(SplitRight("xaaay", "aa", -1), ElementsAre("xa", "y"));
  EXPECT_THAT(SplitSpace("  a \u3000b  ", -1), ElementsAre("a", "b"));
  EXPECT_THAT(SplitSpace(" a  b  c ", 1), ElementsAre("a", "b  c "));
  EXPECT_THAT(SplitLines("a\r\nb\rc\n\nd\u2028"), ElementsAre("a", "b", "c", "", "d"));
}

TEST(TextTest, ChangesCase) {
  EXPECT_EQ(Upper("straße é я"), "STRASSE É Я");
  EXPECT_EQ(Lower("ÀB"), "àb");
  EXPECT_EQ(Capitalize("éCOLE Ab"), "École ab");
  EXPECT_EQ(TitleLetters("it's 3d"), "It'S 3D");
  EXPECT_EQ(TitleWords("it's 3d-x (y) a[b"), "It's 3d-X (Y) A[B");
}

TEST(TextTest, WritesLiterals) {
  EXPECT_EQ(Repr("a'b"), "\"a'b\"");
  EXPECT_EQ(Repr("a'\"\n\x01\u200b日"), "'a\\'\"\\n\\x01\\u200b日'");
  EXPECT_EQ(JsonString("\"\\\n\x01é\x7f", false), "\"\\\"\\\\\\n\\u0001é\x7f\"");
  EXPECT_EQ(JsonString("é\U0001f600", true), "\"\\u00e9\\ud83d\\ude00\"");
}

TEST(TextTest, WritesTheShortestFloat) {
  EXPECT_EQ(FloatText(1), "1.0");
  EXPECT_EQ(FloatText(0.1), "0.1");
  EXPECT_EQ(FloatText(-0.0), "-0.0");
  EXPECT_EQ(FloatText(1e15), "1000000000000000.0");
  EXPECT_EQ(FloatText(1e16), "1e+16");
  EXPECT_EQ(FloatText(0.0001), "0.0001");
  EXPECT_EQ(FloatText(0.00001), "1e-05");
  EXPECT_EQ(FloatText(INFINITY), "inf");
}

}  // namespace
}  // namespace millrace::jinja
