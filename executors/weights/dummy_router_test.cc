// The loads of experts behind dummy routers: rows drawn as kernels/weights/fill.h draws them, and
// inputs as a first layer's norm makes them of drawn embeddings.
#include "executors/weights/dummy_router.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr int kExperts = 128;
constexpr int kChosen = 8;
constexpr int kHidden = 256;
constexpr int kTokens = 4000;

// The tokens of each expert. Of sigmoids, the choice is between rounded scores.
std::vector<int> CountTokens(const std::vector<float>& factors, bool sigmoid) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<float> drawn(-1e-3f, 1e-3f);
  std::vector<float> rows(kExperts * kHidden), norm(kHidden), x(kHidden), scores(kExperts);
  for (int i = 0; i < kExperts * kHidden; ++i) rows[i] = factors[i / kHidden] * drawn(random);
  for (float& weight : norm) weight = drawn(random);
  std::vector<int> tokens(kExperts), order(kExperts);
  for (int token = 0; token < kTokens; ++token) {
    float squares = 0;
    for (float& value : x) value = drawn(random), squares += value * value;
    const float scale = 1 / std::sqrt(squares / kHidden + 1e-6f);
    for (int i = 0; i < kHidden; ++i) x[i] *= scale * norm[i];
    for (int expert = 0; expert < kExperts; ++expert) {
      const float logit =
          std::inner_product(x.begin(), x.end(), rows.begin() + expert * kHidden, 0.0f);
      scores[expert] = sigmoid ? 1 / (1 + std::exp(-logit)) : logit;
    }
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + kChosen, order.end(), [&](int a, int b) {
      return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
    });
    for (int i = 0; i < kChosen; ++i) ++tokens[order[i]];
  }
  return tokens;
}

// How many experts a step of `rows` tokens is expected to touch.
double Touched(const std::vector<int>& tokens, int rows) {
  double touched = 0;
  for (const int count : tokens) touched += 1 - std::pow(1 - double{1} * count / kTokens, rows);
  return touched;
}

// The deviation of the loads' logarithms.
double Deviation(const std::vector<int>& tokens) {
  double sum = 0, squares = 0;
  for (const int count : tokens) {
    const double logarithm = std::log(std::max(count, 1));
    sum += logarithm;
    squares += logarithm * logarithm;
  }
  return std::sqrt(squares / kExperts - sum * sum / kExperts / kExperts);
}

TEST(DummyRouterTest, EqualRowsLoadExpertsAlike) {
  for (const bool sigmoid : {false, true}) {
    const std::vector<int> tokens = CountTokens(std::vector<float>(kExperts, 1.0f), sigmoid);
    const auto [least, most] = std::minmax_element(tokens.begin(), tokens.end());
    const int mean = kTokens * kChosen / kExperts;  // 250, and their deviation about 16
    EXPECT_GT(*least, 0.5 * mean);
    EXPECT_LT(*most, 1.5 * mean);
    EXPECT_NEAR(Touched(tokens, 16), kExperts * (1 - std::pow(1 - 1.0 / 16, 16)), 1);
  }
}

TEST(DummyRouterTest, SkewedRowsLoadThemAsTrainedOnes) {
  for (const bool sigmoid : {false, true}) {
    const std::vector<int> tokens = CountTokens(SkewedRouterRows(kExperts, kChosen, 3), sigmoid);
    const int mean = kTokens * kChosen / kExperts;
    const int most = *std::max_element(tokens.begin(), tokens.end());
    EXPECT_GT(most, 4 * mean);
    EXPECT_LE(most, 0.5 * kTokens);
    EXPECT_NEAR(Deviation(tokens), 1, 0.15);
    EXPECT_LT(Touched(tokens, 16), 0.85 * kExperts * (1 - std::pow(1 - 1.0 / 16, 16)));
  }
}

TEST(DummyRouterTest, TheOrderIsTheSeeds) {
  std::vector<float> rows = SkewedRouterRows(kExperts, kChosen, 3);
  EXPECT_EQ(rows, SkewedRouterRows(kExperts, kChosen, 3));
  std::vector<float> others = SkewedRouterRows(kExperts, kChosen, 4);
  EXPECT_NE(rows, others);
  std::sort(rows.begin(), rows.end());
  std::sort(others.begin(), others.end());
  EXPECT_EQ(rows, others);
}

TEST(DummyRouterTest, EverySizeHasFactors) {
  for (const int experts : {1, 2, 4, 8, 60, 512}) {
    for (const int chosen : {1, 2, 8, 16}) {
      if (chosen > experts) continue;
      const std::vector<float> rows = SkewedRouterRows(experts, chosen, 1);
      ASSERT_EQ(rows.size(), static_cast<size_t>(experts));
      for (const float row : rows) {
        EXPECT_GT(row, 0.1f) << chosen << " of " << experts;
        EXPECT_LT(row, 4.1f) << chosen << " of " << experts;
      }
      if (chosen >= 0.4 * experts) {
        EXPECT_EQ(rows, std::vector<float>(experts, 1.0f));
      }
    }
  }
}

}  // namespace
}  // namespace millrace
