#include "engine/answer/prediction_count.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace millrace {
namespace {

// Counts bytes as tokens; after a deviation three in a row count.
PredictedTokens Count(const std::string& prediction, const std::string& answer) {
  const std::vector<Token> tokens(prediction.begin(), prediction.end());
  PredictionCount count(std::make_shared<const SuffixAutomaton>(3, tokens), 3);
  for (const char c : answer) count.Add(c);
  return count.tokens();
}

void ExpectCount(const std::string& prediction, const std::string& answer, int32_t accepted,
                 int32_t rejected) {
  const PredictedTokens tokens = Count(prediction, answer);
  EXPECT_EQ(tokens.accepted, accepted) << answer;
  EXPECT_EQ(tokens.rejected, rejected) << answer;
}

TEST(PredictionCountTest, CountsWhatTheAnswerHasOfThePrediction) {
  ExpectCount("abcdefgh", "", 0, 8);
  ExpectCount("abcdefgh", "abcdefgh", 8, 0);
  ExpectCount("abcdefgh", "ab", 2, 6);
  ExpectCount("abcdefgh", "abcdefgh and more", 8, 0);
  ExpectCount("abcdefgh", "xyz", 0, 8);
}

TEST(PredictionCountTest, FindsItsPlaceAfterADeviation) {
  ExpectCount("abcdefgh", "abXdefgh", 7, 1);
  ExpectCount("abcdefgh", "abXXefgh", 6, 2);
  ExpectCount("abcdefgh", "abXXXXgh", 2, 6);   // two tokens may be a coincidence
  ExpectCount("abcdefgh", "Xabcdefgh", 8, 0);  // something stands before it
  ExpectCount("abcdefgh", "defabc", 6, 2);     // in another order
}

TEST(PredictionCountTest, CountsNoMoreThanThereAre) { ExpectCount("abcd", "abcdabcdabcd", 4, 0); }

}  // namespace
}  // namespace millrace
