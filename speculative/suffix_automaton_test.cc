#include "speculative/suffix_automaton.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace millrace {
namespace {

using Text = std::vector<Token>;

Text RandomText(std::mt19937& random, size_t tokens, Token vocabulary) {
  Text text(tokens);
  for (Token& token : text) token = static_cast<Token>(random() % vocabulary);
  return text;
}

// Returns whether the last `length` tokens of `suffix_of` end before `end` in `text`.
bool EndsAt(const Text& text, size_t end, const Text& suffix_of, size_t length) {
  return length <= end && length <= suffix_of.size() &&
         std::equal(suffix_of.end() - length, suffix_of.end(), text.begin() + (end - length));
}

// Looks at every position of `text`, at most at `last_end`, and returns the length of the longest
// suffix of `suffix_of` that ends there, and the last such end.
struct Longest {
  int32_t length = 0;
  int32_t end = 0;
};
Longest FindLongest(const Text& text, size_t last_end, const Text& suffix_of) {
  Longest longest;
  for (size_t end = 1; end <= last_end; ++end) {
    size_t length = 0;
    while (EndsAt(text, end, suffix_of, length + 1)) ++length;
    if (length > 0 && static_cast<int32_t>(length) >= longest.length) {
      longest = {static_cast<int32_t>(length), static_cast<int32_t>(end)};
    }
  }
  return longest;
}

TEST(SuffixAutomatonTest, FindsTheLongestSuffixThatOccursEarlier) {
  std::mt19937 random(1);
  for (const Token vocabulary : {1, 2, 3, 10, 100}) {
    SuffixAutomaton automaton(1);
    Text text;
    for (const Token token : RandomText(random, 300, vocabulary)) {
      text.push_back(token);
      automaton.Append(token);
      const Longest expected = FindLongest(text, text.size() - 1, text);
      ASSERT_EQ(automaton.repeated().length, expected.length) << text.size();
      // One token alone makes more suffixes than are kept up to date.
      if (vocabulary == 1 || expected.length == 0) continue;
      ASSERT_EQ(automaton.repeated_end(), expected.end) << text.size();
    }
    EXPECT_EQ(Text(automaton.text().begin(), automaton.text().end()), text);
  }
}

TEST(SuffixAutomatonTest, FollowsAnotherText) {
  std::mt19937 random(2);
  for (const Token vocabulary : {2, 3, 10, 100}) {
    const Text text = RandomText(random, 300, vocabulary);
    const SuffixAutomaton automaton(1, text);
    SuffixAutomaton::Match match;
    Text other;
    // Tokens that the text lacks come, too.
    for (const Token token : RandomText(random, 300, vocabulary + 1)) {
      other.push_back(token);
      automaton.Follow(token, match);
      const Longest expected = FindLongest(text, text.size(), other);
      ASSERT_EQ(match.length, expected.length);
      if (expected.length == 0) continue;
      ASSERT_EQ(automaton.EndOf(match), expected.end);
    }
  }
}

TEST(SuffixAutomatonTest, KeepsMatchesBelowTheMinimumAtAnEarlierEnd) {
  const Text text = {7, 8, 1, 7, 8, 2, 7, 8, 3};
  const SuffixAutomaton all(1, text);
  const SuffixAutomaton threes(3, text);
  for (const SuffixAutomaton* automaton : {&all, &threes}) {
    SuffixAutomaton::Match match;
    for (const Token token : {7, 8}) automaton->Follow(token, match);
    EXPECT_EQ(match.length, 2);
    EXPECT_EQ(automaton->EndOf(match), automaton == &all ? 8 : 2);
  }
}

TEST(SuffixAutomatonTest, ACopyIsIndependent) {
  SuffixAutomaton first(1, Text{1, 2, 3, 1, 2});
  SuffixAutomaton second = first;
  first.Append(3);
  second.Append(4);
  EXPECT_EQ(first.repeated().length, 3);
  EXPECT_EQ(second.repeated().length, 0);
}

// A text whose automaton has the most states for its length, one with the most transitions for each
// state, one of distinct tokens, and one of one token.
TEST(SuffixAutomatonTest, HoldsAtMostEightyBytesAToken) {
  constexpr size_t kTokens = 100'000;
  std::mt19937 random(3);
  Text most_states(kTokens, 2);
  most_states[0] = 1;
  Text after_one(kTokens);
  Text distinct(kTokens);
  for (size_t i = 0; i < kTokens; ++i) {
    after_one[i] = i % 2 == 0 ? 0 : static_cast<Token>(i);
    distinct[i] = static_cast<Token>(i);
  }
  for (const Text& text : {most_states, after_one, distinct, Text(kTokens, 5),
                           RandomText(random, kTokens, 2), RandomText(random, kTokens, 1000)}) {
    const SuffixAutomaton automaton(3, text);
    EXPECT_LE(automaton.MemoryBytes(), 80 * kTokens);
  }
}

}  // namespace
}  // namespace millrace
