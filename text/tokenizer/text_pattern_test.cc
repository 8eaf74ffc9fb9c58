#include "text/tokenizer/text_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

std::vector<std::pair<size_t, size_t>> Find(const TextPattern& pattern, std::string_view text) {
  const absl::StatusOr<TextMatcher> matcher = TextMatcher::Create(pattern);
  EXPECT_TRUE(matcher.ok()) << matcher.status();
  std::vector<std::pair<size_t, size_t>> found;
  const absl::Status status = matcher->ForEach(text, [&](TextMatcher::Match match) {
    found.emplace_back(match.begin, match.end);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return found;
}

TEST(TextPatternTest, FindsTextsAndExpressions) {
  EXPECT_THAT(Find({false, "aa"}, "aaaa."), ElementsAre(Pair(0, 2), Pair(2, 4)));
  EXPECT_THAT(Find({false, "."}, "ab"), IsEmpty());
  EXPECT_THAT(Find({true, "a+"}, "aab a"), ElementsAre(Pair(0, 2), Pair(4, 5)));
  // An empty match does not stand at the end of the one before.
  EXPECT_THAT(Find({true, "x*"}, "axé"), ElementsAre(Pair(0, 0), Pair(1, 2), Pair(4, 4)));
  EXPECT_THAT(Find({true, R"(\s+$)"}, "a  \n \n  b  "), ElementsAre(Pair(1, 5), Pair(9, 11)));
}

TEST(TextPatternTest, MakesEndsPossessive) {
  EXPECT_EQ(WithPossessiveEnds(R"(a+|\p{L}+|[^+]+|\++|b*)"), R"(a++|\p{L}++|[^+]++|\+++|b*+)");
  EXPECT_EQ(WithPossessiveEnds(R"(a+b|(a+|b)+|a+?|a{2}+|\s+(?!\S)|\+)"),
            R"(a+b|(a+|b)++|a+?|a{2}+|\s+(?!\S)|\+)");
  EXPECT_EQ(WithPossessiveEnds(R"([]+]+|[[a]+|b]+)"), R"([]+]++|[[a]+|b]++)");
}

// Members as Hugging Face's tokenizers have them, where Oniguruma 6.9.8 has others. Every class is
// compared in regex_encoding_test.cc.
TEST(TextPatternTest, PropertiesAreHuggingFaces) {
  const auto has = [](const std::string& expression, const std::string& character) {
    return !Find({true, expression}, character).empty();
  };
  for (const char* symbol :
       {"$", "+", "<", "=", ">", "^", "`", "|", "~", "\u00a2", "\u00d7", "\u20ac", "\U0001f600"}) {
    EXPECT_TRUE(has("[[:punct:]]", symbol) && !has("[^[:punct:]]", symbol)) << symbol;
    EXPECT_FALSE(has("[[:^punct:]]", symbol) || has("\\p{Punct}", symbol)) << symbol;
  }
  for (const char* letter : {"\u0363", "\u0c04", "\u0f83", "\u1de6", "\U00011081"}) {
    EXPECT_TRUE(has("[[:alpha:]]", letter) && has("\\p{Alphabetic}", letter)) << letter;
    EXPECT_TRUE(has("[[:alnum:]]", letter) && !has("\\P{Alpha}", letter)) << letter;
  }
  for (const char* small : {"\u10fc", "\ua7f2", "\uab69", "\U0001e030"}) {
    EXPECT_TRUE(has("[[:lower:]]", small) && has("\\p{Cased}", small)) << small;
    EXPECT_FALSE(has("\\p{Ll}", small)) << small;
  }
  for (const char* joiner : {"\u200c", "\u200d", "\u30fb", "\uff65"}) {
    EXPECT_TRUE(has("\\p{XID_Continue}", joiner) && !has("\\p{XID_Start}", joiner)) << joiner;
  }
  EXPECT_TRUE(has("\\p{Word}", "\u00b2"));
  EXPECT_TRUE(has("\\p{S}", "\U0001fae8") && has("[[:punct:]]", "\U0001fae8"));  // a shaking face
  EXPECT_TRUE(has("\\p{Lo}", "\U00031350") && has("\\p{Han}", "\U00031350"));
  EXPECT_TRUE(has("\\w", "\U00031350") && !has("a\\b\U00031350", "a\U00031350"));
  EXPECT_TRUE(has("\\p{Kirat_Rai}", "\U00016d43") && has("\\p{^kawi}", "a"));
  EXPECT_THAT(Find({true, R"((?i)\p{Lu}+)"}, "aBc"), ElementsAre(Pair(1, 2)));
  EXPECT_TRUE(has("\\p{Mc}", "\U0001171e") && !has("\\p{Mn}", "\U0001171e"));
  EXPECT_TRUE(has("\\P{Mn}", "\U0001171e") && has("[^a\\p{Mn}]", "\U0001171e"));
}

TEST(TextPatternTest, SaysWhatIsWrong) {
  EXPECT_THAT(std::string(TextMatcher::Create({true, "("}).status().message()),
              HasSubstr("the regular expression \"(\": end pattern with unmatched parenthesis"));
  // 2 to the power of 40 ways to match.
  const TextMatcher slow = *TextMatcher::Create({true, "(a|a)*c"});
  const absl::Status status = slow.ForEach(std::string(40, 'a') + "bc",
                                           [](TextMatcher::Match) { return absl::OkStatus(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("prompt: the text after byte 0"));
}

TEST(TextPatternTest, LongRunsTakeLinearTime) {
  const std::string spaces(1 << 20, ' ');
  EXPECT_THAT(Find({true, R"(\s+$)"}, spaces + "x"), IsEmpty());
  EXPECT_THAT(Find({true, R"(\p{L}+|\s+(?!\S)|\s+)"}, spaces + "x"),
              ElementsAre(Pair(0, spaces.size() - 1), Pair(spaces.size() - 1, spaces.size()),
                          Pair(spaces.size(), spaces.size() + 1)));
}

}  // namespace
}  // namespace millrace
