#include "text/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace millrace {
namespace {

std::string Lossy(std::string_view text) {
  std::string out;
  const size_t taken = AppendWholeCharacters(text, &out);
  return taken < text.size() ? out + "|" + std::to_string(text.size() - taken) : out;
}

TEST(Utf8Test, KeepsWhatIsWellFormed) {
  const std::string text = "a\x7f\u0080\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff z";
  EXPECT_EQ(Lossy(text), text);
  EXPECT_EQ(FindInvalidUtf8(text), std::string_view::npos);
  EXPECT_EQ(FindInvalidUtf8(""), std::string_view::npos);
}

TEST(Utf8Test, ReplacesTheLongestBeginningOrOneByte) {
  EXPECT_EQ(Lossy("\x80x"), "\ufffdx");
  EXPECT_EQ(Lossy("\xc0\xafx"), "\ufffd\ufffdx");                      // overlong "/"
  EXPECT_EQ(Lossy("\xe0\x80\xafx"), "\ufffd\ufffd\ufffdx");            // overlong
  EXPECT_EQ(Lossy("\xed\xa0\x80x"), "\ufffd\ufffd\ufffdx");            // a surrogate
  EXPECT_EQ(Lossy("\xf4\x90\x80\x80x"), "\ufffd\ufffd\ufffd\ufffdx");  // above U+10FFFF
  EXPECT_EQ(Lossy("\xe2\x82x"), "\ufffdx");
  EXPECT_EQ(Lossy("\xf0\x9f\x98\xe2\x82\xac"), "\ufffd\u20ac");
  EXPECT_EQ(Lossy("\xff\xfe"), "\ufffd\ufffd");
}

TEST(Utf8Test, HoldsBackACutCharacter) {
  EXPECT_EQ(Lossy("ab\xe2\x82"), "ab|2");
  EXPECT_EQ(Lossy("\xf0\x9f\x98"), "|3");
  EXPECT_EQ(Lossy("\xc3"), "|1");
  EXPECT_EQ(Lossy("\xe0\x80"), "\ufffd\ufffd");  // no character begins so: nothing to wait for
}

TEST(Utf8Test, FindsTheFirstInvalidByte) {
  EXPECT_EQ(FindInvalidUtf8("0123456789abcdef\xff"), 16u);
  EXPECT_EQ(FindInvalidUtf8("é\xe2\x82"), 2u);
  EXPECT_EQ(FindInvalidUtf8("0123456\xe9g"), 7u);
}

}  // namespace
}  // namespace millrace
