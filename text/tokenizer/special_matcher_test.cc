#include "text/tokenizer/special_matcher.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace millrace {
namespace {

TEST(SpecialMatcherTest, TakesTheLeftmostAndOfThoseTheLongest) {
  const SpecialMatcher matcher({{"<a>", 1}, {"<a><b>", 2}, {"<a", 3}, {"b>x", 4}, {"", 5}});
  const auto expect = [&](std::string_view text, size_t begin, size_t size, Token token) {
    const auto match = matcher.Find(text);
    ASSERT_TRUE(match.has_value()) << text;
    EXPECT_EQ(match->begin, begin) << text;
    EXPECT_EQ(match->size, size) << text;
    EXPECT_EQ(match->token, token) << text;
  };
  expect("__<a>", 2, 3, 1);
  expect("<a><b>x", 0, 6, 2);
  expect("<a><b", 0, 3, 1);
  expect("<<ab>x", 1, 2, 3);
  expect("b>b>x", 2, 3, 4);
  EXPECT_FALSE(matcher.Find("").has_value());
  EXPECT_FALSE(matcher.Find("<b>").has_value());
  EXPECT_FALSE(SpecialMatcher().Find("<a>").has_value());
}

TEST(SpecialMatcherTest, AgreesWithTryingEveryTextEverywhere) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const auto word = [&](int longest) {
      std::string text(1 + random() % longest, 'a');
      for (char& c : text) c = random() % 2 == 0 ? 'a' : '\xc3';
      return text;
    };
    std::vector<std::pair<std::string, Token>> tokens;
    for (int i = 0; i < 5; ++i) tokens.emplace_back("a" + word(5), i);
    const std::string text = word(30);
    std::optional<SpecialMatcher::Match> expected;
    for (size_t begin = 0; begin < text.size() && !expected; ++begin) {
      for (const auto& [special, token] : tokens) {
        if (text.compare(begin, special.size(), special) == 0 &&
            (!expected || special.size() > expected->size)) {
          expected = {begin, special.size(), token};
        }
      }
    }
    const auto found = SpecialMatcher(tokens).Find(text);
    ASSERT_EQ(found.has_value(), expected.has_value());
    if (found) {
      EXPECT_EQ(found->begin, expected->begin);
      EXPECT_EQ(found->size, expected->size);
    }
  }
}

}  // namespace
}  // namespace millrace
