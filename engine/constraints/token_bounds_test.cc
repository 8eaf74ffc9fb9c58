#include "engine/constraints/token_bounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/text_set.h"

namespace millrace {
namespace {

std::vector<Token> Allowed(const TokenMask& mask) {
  std::vector<Token> allowed;
  for (Token token = 0; token < 100; ++token) {
    if (MaskAllows(mask, token)) allowed.push_back(token);
  }
  return allowed;
}

// Returns all tokens below 70 but these.
std::vector<Token> AllBut(const std::vector<Token>& missing) {
  std::vector<Token> all;
  for (Token token = 0; token < 70; ++token) {
    if (std::find(missing.begin(), missing.end(), token) == missing.end()) all.push_back(token);
  }
  return all;
}

TEST(TokenBoundsTest, AllowsTheListedTokensAlone) {
  const TokenBounds bounds(std::vector<Token>{3, 69, 31, 3}, {}, 70);
  EXPECT_EQ(Allowed(*bounds.Mask(nullptr)), (std::vector<Token>{3, 31, 69}));
  const TokenMask within = {0x8, 0, 0};
  EXPECT_EQ(Allowed(*bounds.Mask(&within)), std::vector<Token>{3});
}

TEST(TokenBoundsTest, ForbidsTheLastTokenWhereTheOthersHaveCome) {
  TokenBounds bounds({}, {{5}, {1, 2}, {1, 1, 3}, {4, 1, 2, 6}}, 70);
  EXPECT_EQ(Allowed(*bounds.Mask(nullptr)), AllBut({5}));
  bounds.Accept(4);
  EXPECT_EQ(Allowed(*bounds.Mask(nullptr)), AllBut({5}));
  bounds.Accept(1);
  EXPECT_EQ(Allowed(*bounds.Mask(nullptr)), AllBut({2, 5}));
  TokenBounds other = bounds;
  bounds.Accept(1);
  EXPECT_EQ(Allowed(*bounds.Mask(nullptr)), AllBut({2, 3, 5}));
  const TokenMask within = {0xf, 0, 0};
  EXPECT_EQ(Allowed(*bounds.Mask(&within)), (std::vector<Token>{0, 1}));
  bounds.Accept(9);
  EXPECT_EQ(Allowed(*bounds.Mask(nullptr)), AllBut({5}));
  other.Accept(2);  // which a grammar's forced text may write
  EXPECT_EQ(Allowed(*other.Mask(nullptr)), AllBut({5, 6}));
}

TEST(TokenBoundsTest, TheSameMaskIsSharedWhileNothingChanges) {
  TokenBounds bounds({}, {{5}, {1, 2}}, 70);
  const auto first = bounds.Mask(nullptr);
  bounds.Accept(3);
  EXPECT_EQ(bounds.Mask(nullptr), first);
}

TEST(TokenizeBadWordsTest, WordsAreFoundAtTheBeginningAndWithinAText) {
  const auto text = TextSet::Bytes();
  ASSERT_TRUE(text.ok());
  // A token is a byte: behind a space a word has one more, which vLLM leaves out.
  const auto sequences = TokenizeBadWords((*text)->tokenizer(), {" \tab", "c"});
  ASSERT_TRUE(sequences.ok()) << sequences.status();
  EXPECT_EQ(*sequences, (std::vector<std::vector<Token>>{{'a', 'b'}, {'c'}}));
  EXPECT_EQ(TokenizeBadWords((*text)->tokenizer(), {"a", " "}).status().message(),
            "bad_words[1] has no tokens; allowed: a text of more than white space");
  EXPECT_EQ(TokenizeBadWords((*text)->tokenizer(), {"\xff"}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
