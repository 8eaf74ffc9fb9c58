#include "executors/host/router.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using Scores = RouterConfig::Scores;

std::vector<RoutedExpert> Choose(const RouterConfig& router, const std::vector<float>& logits,
                                 const std::vector<float>& correction = {}) {
  std::vector<RoutedExpert> chosen(router.chosen);
  ExpertChooser().Choose(router, logits, correction, absl::MakeSpan(chosen));
  return chosen;
}

std::vector<int> Experts(const std::vector<RoutedExpert>& chosen) {
  std::vector<int> experts;
  for (const RoutedExpert& expert : chosen) experts.push_back(expert.expert);
  return experts;
}

TEST(ExpertChooserTest, TheBestComeFirstAndOfEqualOnesTheFirst) {
  const RouterConfig router{.experts = 6, .chosen = 4};
  EXPECT_THAT(Experts(Choose(router, {1, 3, 2, 3, 0, 2})), ElementsAre(1, 3, 2, 5));
  EXPECT_THAT(Experts(Choose(router, std::vector<float>(6, 0.5f))), ElementsAre(0, 1, 2, 3));
  // A softmax in float32 makes these logits' scores all zeros; the logits still rank.
  EXPECT_THAT(Experts(Choose(router, {-300, -200, 400, -100, -400, -500})),
              ElementsAre(2, 3, 1, 0));
  // A NaN is never chosen before a number.
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(Experts(Choose({.experts = 3, .chosen = 2}, {nan, -5, -6})), ElementsAre(1, 2));
}

TEST(ExpertChooserTest, ScoresAreSharesOfAllOrOfTheChosen) {
  const std::vector<float> logits = {0, std::log(2.0f), std::log(5.0f), -INFINITY};
  RouterConfig router{.experts = 4, .chosen = 2};
  std::vector<RoutedExpert> chosen = Choose(router, logits);
  EXPECT_FLOAT_EQ(chosen[0].score, 5 / 8.0f);
  EXPECT_FLOAT_EQ(chosen[1].score, 2 / 8.0f);
  router.renormalize = true;
  router.factor = 3;
  chosen = Choose(router, logits);
  EXPECT_FLOAT_EQ(chosen[0].score, 3 * 5 / 7.0f);
  EXPECT_FLOAT_EQ(chosen[1].score, 3 * 2 / 7.0f);
}

TEST(ExpertChooserTest, ACorrectionCountsForTheChoiceAlone) {
  const RouterConfig router{.experts = 4, .chosen = 2, .scores = Scores::kSigmoid};
  const std::vector<RoutedExpert> chosen = Choose(router, {0, 4, 1, 2}, {0.9f, 0, 0, 0});
  EXPECT_THAT(Experts(chosen), ElementsAre(0, 1));
  EXPECT_FLOAT_EQ(chosen[0].score, 0.5f);
  EXPECT_FLOAT_EQ(chosen[1].score, 1 / (1 + std::exp(-4.0f)));
}

TEST(ExpertChooserTest, ScoresMayAllBeZero) {
  const RouterConfig router{
      .experts = 3, .chosen = 2, .scores = Scores::kSigmoid, .renormalize = true};
  for (const RoutedExpert& expert : Choose(router, {-200, -200, -200})) {
    EXPECT_EQ(expert.score, 0);
  }
}

// Group 1 has the best expert, but group 2 the two best together.
TEST(ExpertChooserTest, GroupsCountAsTheirTwoBest) {
  const RouterConfig router{
      .experts = 9, .chosen = 3, .scores = Scores::kSigmoid, .groups = 3, .chosen_groups = 1};
  EXPECT_THAT(Experts(Choose(router, {0, 0, 0, 3, -9, -9, 2, 1, -1})), ElementsAre(6, 7, 8));
  // More groups than that: the others' experts never come, whatever their scores.
  RouterConfig two = router;
  two.chosen_groups = 2;
  EXPECT_THAT(Experts(Choose(two, {0, 0, 0, 3, -9, -9, 2, 1, -1})), ElementsAre(6, 7, 0));
}

}  // namespace
}  // namespace millrace
